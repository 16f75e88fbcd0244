"""What is refused before anything starts, and how: exit code 2, the cause, the next thing to do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from reknit.cli.app import application
from reknit.core.home import Home


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import os

    for name in list(os.environ):
        if name.startswith(("REKNIT_", "PET_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("REKNIT_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)


def call(*args: str) -> Result:
    return CliRunner().invoke(application(), list(args))


def refused(*args: str, code: int = 2) -> str:
    result = call(*args)
    assert result.exit_code == code, result.output
    assert not result.stdout, "data only"
    assert "Traceback" not in result.stderr
    return result.stderr


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nope.py"], "the script 'nope.py' does not exist"),
        (["folder"], "is a folder"),
        (["-m", "no_such_module"], "there is no module 'no_such_module'"),
        (["broken.py"], "SyntaxError"),
        (["broken.py"], "def broken("),
        (
            ["--nnodes", "3:2", "fine.py"],
            "nnodes has a minimum (3) above its maximum (2), not '3:2' (from flag --nnodes)",
        ),
        (["--nnodes", "0", "fine.py"], "nnodes must be at least 1"),
        (["--nproc_per_node", "0", "fine.py"], "nproc_per_node must be a whole number of at least 1"),
        (["--nproc-per-node", "gpu", "fine.py"], "or auto, not 'gpu'"),
        (["--nproc", "0", "fine.py"], "nproc_per_node must be a whole number of at least 1"),
        (["--resume", "fine.py"], "without a name each run is a job of its own"),
        (["--resume-run", "r", "fine.py"], "without a name each run is a job of its own"),
        (["--label", "x", "fine.py"], "labels cannot be used: the label 'x' is not KEY=VALUE (from flag --label)"),
        (["--seed", "foo", "fine.py"], "'foo' is not an address: it has no port (from flag --seed)"),
        (["--discover", "foo", "fine.py"], "'foo' is no way to find nodes (from flag --discover)"),
        (["--slots", "x", "fine.py"], "slots must be a whole number of at least 0, not 'x' (from flag --slots)"),
        (["--slots", "99999999999", "fine.py"], "slots must be at most 2147483647"),
        (["--grace", "soon", "fine.py"], "grace must be a number of at least 0, not 'soon'"),
        (["--slots", "-1", "fine.py"], "slots must be a whole number of at least 0"),
        (["--stuck-after", "0", "fine.py"], "stuck_after must be a number above 0"),
        (["--job", "a.b", "fine.py"], "job is not a valid name"),
        (["--node", "a b", "fine.py"], "node is not a valid name"),
        (["--keep", "0", "fine.py"], "keep must be"),
        (["--port", "70000", "fine.py"], "port must be a port number"),
        (["--secret-file", "none", "fine.py"], "the secret file none cannot be read"),
        (["--host", "203.0.113.1", "fine.py"], "cannot listen on '203.0.113.1'"),
        (["--host", "0.0.0.0", "fine.py"], "0.0.0.0 is no address that another machine can reach"),
        (["--nats", "http://x", "fine.py"], "is not the address of a broker"),
        (["--nats", "nats://u:secret@h:99999", "fine.py"], "'h:99999' is not the address of a broker"),
        (["--nats", "none.json", "fine.py"], "none.json does not exist"),
        (["--nats", "h:1", "--standalone", "fine.py"], "do not go together"),
        (["--rdzv_backend", "c10d", "fine.py"], "--rdzv-backend of torchrun has no meaning here"),
        (["--node-rank=1", "fine.py"], "nodes have names: --node NAME"),
        (["--no-such-flag", "fine.py"], "No such option"),
        ([], "Missing argument"),
    ],
)
def test_run_refuses(tmp_path: Path, args: list[str], said: str) -> None:
    (tmp_path / "fine.py").write_text("")
    (tmp_path / "broken.py").write_text("def broken(\n")
    (tmp_path / "folder").mkdir()
    assert said in refused("run", *args)


def test_a_secret_never_stands_in_an_error() -> None:
    Path("fine.py").write_text("")
    assert "secret" not in refused("run", "--nats", "nats://u:secret@h:99999", "fine.py")


def test_a_module_is_found_without_running_its_package(tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    (tmp_path / "pack/__init__.py").write_text("raise SystemExit('it ran')")
    (tmp_path / "pack/train.py").write_text("def broken(")
    assert "SyntaxError" in refused("run", "-m", "pack.train")
    assert "has no __main__ module" in refused("run", "-m", "pack")


@pytest.mark.parametrize(
    "verb",
    [
        ["status"],
        ["world"],
        ["events"],
        ["alerts"],
        ["checkpoints", "ls"],
        ["ledger", "verify"],
        ["trace"],
        ["scale", "3"],
        ["drain", "n"],
        ["stop"],
    ],
)
def test_unknown_jobs_list_the_known_ones(tmp_path: Path, verb: list[str]) -> None:
    assert "no job was run here yet" in refused(*verb)
    for job in ("mnist-1", "mnist-2"):
        (tmp_path / "home/jobs" / job).mkdir(parents=True)
    said = refused(*verb, "--job", "mnist-3")
    assert "there is no job 'mnist-3'" in said
    assert "mnist-1" in said
    assert "mnist-2" in said


@pytest.mark.parametrize("number", ["x", "0", "-3", "1.5", ""])
def test_scale_says_what_is_no_number_of_workers(number: str) -> None:
    said = refused("scale", number, "--job", "j")
    assert f"the number of workers must be a whole number of at least 1, not {number!r}" in said
    assert "reknit scale 4" in said
    assert ("reknit stop" in said) == (number == "0")


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["scale", "3", "--jbo", "j"], "No such option: --jbo"),
        (["stop", "--wait", "x"], "'x' must be a number of at least 0"),
        (["down", "--within", "-1"], "'-1' must be a number of at least 0"),
        (["trace", "--last", "0"], "'0' must be a whole number of at least 1"),
        (["chaos", "flip-bit", "-w", "a-0", "--bit", "y"], "'y' must be a whole number of at least -1"),
        (["sim", "membership", "--nodes", "x"], "'x' must be a whole number of at least 2"),
        (["up", "--port", "x"], "port must be a port number, 0 to 65535, not 'x' (from flag --port)"),
    ],
)
def test_numbers_are_refused_in_our_own_words(args: list[str], said: str) -> None:
    shown = refused(*args)
    assert said in shown
    assert "Input should be" not in shown


def test_a_mistyped_verb_is_told_the_nearest() -> None:
    said = refused("statsu")
    assert "No such command 'statsu'" in said
    assert "Did you mean 'status'" in said


def test_the_help_of_run_tells_the_defaults_that_are_something() -> None:
    shown = " ".join(call("run", "--help").stdout.split())
    for default in ("[default: 30]", "[default: 100]", "[default: train]", "[default: 3]"):
        assert default in shown
    assert "[default: 0]" not in shown
    assert "SCRIPT" in shown


def test_down_says_what_it_is_about(tmp_path: Path) -> None:
    result = call("down")
    assert result.exit_code == 0
    assert "nothing to end: `reknit up` is not running here" in result.stderr
    other = Home.at(str(tmp_path / "home")).job("mine")
    other.make()
    with other.control("run", wait=1.0) as held:
        assert held
        said = call("down").stderr
    assert "mine: with a broker of their own" in said
    assert "use this broker" not in said


def _looks() -> list[list[str]]:
    """All verbs that are about a job."""
    from typer.main import get_command

    found: list[list[str]] = []

    def walk(command: Any, path: list[str]) -> None:
        for name, sub in getattr(command, "commands", {}).items():
            walk(sub, [*path, name])
        if any("--job" in getattr(p, "opts", ()) for p in command.params):
            found.append(path)

    walk(get_command(application()), [])
    return found


@pytest.mark.parametrize("verb", _looks(), ids=" ".join)
def test_every_verb_about_a_job_can_be_told_its_broker(verb: list[str]) -> None:
    assert "--nats" in call(*verb, "--help").stdout


def test_areas_and_times_are_checked() -> None:
    assert "did you mean 'world'?" in refused("events", "--area", "wrld")
    assert "--since 'soon' is no time" in refused("events", "--since", "soon")


def test_config_show_names_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reknit.toml").write_text("slots = 8\nlast-call = 1.5\n")
    monkeypatch.setenv("REKNIT_SLOTS", "16")
    monkeypatch.setenv("PET_NNODES", "1:4")
    monkeypatch.setenv("REKNIT_SLOTZ", "16")
    result = call("config", "show", "--json")
    assert result.exit_code == 0
    rows = {row["name"]: row for row in json.loads(result.stdout)}
    assert (rows["slots"]["value"], rows["slots"]["source"]) == (16, "environment REKNIT_SLOTS")
    assert (rows["nnodes"]["value"], rows["nnodes"]["source"]) == ("1:4", "environment PET_NNODES")
    assert (rows["last_call"]["value"], rows["last_call"]["source"]) == (1.5, f"file {tmp_path / 'reknit.toml'}")
    assert rows["keep"]["source"] == "default"
    assert "nothing reads REKNIT_SLOTZ; did you mean REKNIT_SLOTS?" in result.stderr
    assert "slots" in call("config", "show").stdout


def test_a_bad_file_stops_every_verb_that_reads_settings(tmp_path: Path) -> None:
    (tmp_path / "reknit.toml").write_text("slot = 8\n")
    said = refused("status")
    assert "'slot' is not a setting" in said
    assert "did you mean 'slots'?" in said


def test_doctor_finds_something_of_everything() -> None:
    result = call("doctor", "--json")
    findings = json.loads(result.stdout)
    assert {"python", "torch", "nats-server", "home", "disk", "clock"} <= {f["what"] for f in findings}
    assert {f["state"] for f in findings} <= {"ok", "warn", "fail"}
    assert all(f["todo"] for f in findings if f["state"] != "ok")
    assert result.exit_code == int(any(f["state"] == "fail" for f in findings))


def test_doctor_tells_of_a_bad_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REKNIT_HOME", "/proc/none")
    result = call("doctor")
    assert result.exit_code == 1
    assert "set REKNIT_HOME to a folder" in result.stdout


def test_help_and_version() -> None:
    assert "Commands:" in call("--help").stdout
    assert call("--version").stdout.startswith("reknit ")
    for verb in ("run", "up", "checkpoints", "events"):
        assert call(verb, "-h").exit_code == 0
