from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from reknit.core import settings
from reknit.core.errors import UsageError
from reknit.core.setting_kinds import NodeSpan
from reknit.core.settings import resolve


@pytest.mark.parametrize(
    ("flag", "env", "toml", "pyproject", "value", "source"),
    [
        (7, {"REKNIT_SLOTS": "6"}, "slots = 5", "slots = 4", 7, "flag --slots"),
        (0, {"REKNIT_SLOTS": "6"}, "slots = 5", "slots = 4", 0, "flag --slots"),
        (None, {"REKNIT_SLOTS": "6"}, "slots = 5", "slots = 4", 6, "environment REKNIT_SLOTS"),
        (None, {"REKNIT_SLOTS": ""}, "slots = 5", "slots = 4", 5, "reknit.toml"),
        (None, {}, "slots = 5", "slots = 4", 5, "reknit.toml"),
        (None, {}, None, "slots = 4", 4, "pyproject.toml"),
        (None, {}, "keep = 1", "slots = 4", 0, "default"),
        (None, {}, None, None, 0, "default"),
    ],
)
def test_precedence(
    tmp_path: Path,
    flag: int | None,
    env: dict[str, str],
    toml: str | None,
    pyproject: str | None,
    value: int,
    source: str,
) -> None:
    if toml is not None:
        (tmp_path / "reknit.toml").write_text(toml)
    if pyproject is not None:
        (tmp_path / "pyproject.toml").write_text(f"[project]\nname = 'x'\n[tool.reknit]\n{pyproject}\n")
    found = resolve({"slots": flag}, env, tmp_path)
    assert found.job.slots == value
    assert found.sources["slots"].endswith(source)


@pytest.mark.parametrize(
    ("variable", "text", "where", "value"),
    [
        ("PET_NNODES", "1:4", ("job", "nnodes"), NodeSpan(1, 4)),
        ("PET_NPROC_PER_NODE", "auto", ("job", "nproc_per_node"), settings.AUTO),
        ("PET_RDZV_ID", "abc", ("job", "job"), "abc"),
        ("PET_RDZV_ENDPOINT", "host:4222", ("control", "nats"), "host:4222"),
        ("PET_MAX_RESTARTS", "3", ("job", "max_restarts"), 3),
        ("PET_LOCAL_ADDR", "10.0.0.1", ("node", "host"), "10.0.0.1"),
        ("REKNIT_RESUME", "yes", ("checkpoint", "resume"), True),
        ("REKNIT_LAST_CALL", "0.5", ("job", "last_call"), 0.5),
        ("REKNIT_VERIFY_WEIGHTS", "0", ("job", "verify_weights"), False),
        ("REKNIT_NUMERICS", "relaxed", ("job", "numerics"), "relaxed"),
        ("REKNIT_CHAOS", "1", ("job", "allow_chaos"), True),
    ],
)
def test_environment(tmp_path: Path, variable: str, text: str, where: tuple[str, str], value: Any) -> None:
    found = resolve({}, {variable: text}, tmp_path)
    assert getattr(getattr(found, where[0]), where[1]) == value
    assert found.sources[where[1]] == f"environment {variable}"


@pytest.mark.parametrize(
    ("text", "value"), [("1", "on"), ("0", "off"), ("auto", "auto"), ("ON", "on"), (" Auto ", "auto")]
)
def test_overlap_is_on_off_or_auto(tmp_path: Path, text: str, value: str) -> None:
    assert resolve({}, {"REKNIT_OVERLAP": text}, tmp_path).node.overlap == value
    assert resolve({"overlap": text}, {}, tmp_path).node.overlap == value


@pytest.mark.parametrize("text", ["s3://bucket/x", "file:///tmp/x", "gs://b", "https://host/x"])
def test_an_address_is_no_folder_of_checkpoints(tmp_path: Path, text: str) -> None:
    said = f"checkpoint_dir must be a folder .URLs are not supported.*, not '{text}' .from flag --checkpoint-dir"
    with pytest.raises(UsageError, match=said):
        resolve({"checkpoint_dir": text}, {}, tmp_path)
    with pytest.raises(UsageError, match="must be a folder"):
        resolve({}, {"REKNIT_CHECKPOINT_DIR": text}, tmp_path)
    assert resolve({"checkpoint_dir": "a:b/c"}, {}, tmp_path).checkpoint.checkpoint_dir == "a:b/c"


def test_overlap_is_nothing_else(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be auto, 1 or 0, not 'sometimes'"):
        resolve({}, {"REKNIT_OVERLAP": "sometimes"}, tmp_path)
    assert resolve({}, {}, tmp_path).node.overlap == "auto"


def test_our_own_variable_goes_before_torchruns(tmp_path: Path) -> None:
    found = resolve({}, {"PET_NNODES": "1:4", "REKNIT_NNODES": "2"}, tmp_path)
    assert found.job.nnodes == NodeSpan(2, 2)


@pytest.mark.parametrize(
    ("content", "said", "hint"),
    [
        ("slot = 3", "'slot' is not a setting", "did you mean 'slots'?"),
        ("checkpoint-every-step = 3", "is not a setting", "did you mean 'checkpoint_every_steps'?"),
        ("zzz = 3", "'zzz' is not a setting", "`reknit config show` lists them all"),
        ("slots = ", "is not valid TOML", ""),
        ("slots = 'many'", "slots must be a whole number of at least 0, not 'many' (from file", "Slots of a step"),
        ("slots = true", "slots must be a whole number", ""),
        ("slots = 1.5", "slots must be a whole number", ""),
        ("job = 3", "job must be text", ""),
        ("resume = 'perhaps'", "resume must be true or false", ""),
        ("last_call = nan", "last_call must be a number", ""),
        ('numerics = "loose"', "numerics must be strict or relaxed", ""),
        ("last_call = inf", "last_call must be a number", ""),
        ("nnodes = '1:2:3'", "nnodes must be a number of nodes or MIN:MAX", ""),
    ],
)
def test_a_bad_file_is_named_with_the_nearest_known_key(tmp_path: Path, content: str, said: str, hint: str) -> None:
    (tmp_path / "reknit.toml").write_text(content + "\n")
    with pytest.raises(UsageError) as raised:
        resolve({}, {}, tmp_path)
    assert said in str(raised.value)
    assert "reknit.toml" in str(raised.value)
    assert hint in raised.value.hint


def test_keys_may_be_written_with_hyphens(tmp_path: Path) -> None:
    (tmp_path / "reknit.toml").write_text('checkpoint-every-steps = 5\nnnodes = 3\nnproc-per-node = "auto"\n')
    found = resolve({}, {}, tmp_path)
    assert found.checkpoint.checkpoint_every_steps == 5
    assert found.job.nnodes == NodeSpan(3, 3)
    assert found.job.nproc_per_node == settings.AUTO


def test_somebody_elses_broken_pyproject_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[broken")
    assert resolve({}, {}, tmp_path).job.slots == 0
    (tmp_path / "pyproject.toml").write_text("[tool.reknit\nslots = 3")
    with pytest.raises(UsageError, match="not valid TOML"):
        resolve({}, {}, tmp_path)


def test_every_setting_is_documented_and_its_default_is_valid(tmp_path: Path) -> None:
    found = resolve({}, {}, tmp_path)
    for name, value, source, doc in found.items():
        assert source == "default"
        assert len(doc) > 20
        assert doc.endswith(".") or "default" in doc
        again = resolve({name: value}, {}, tmp_path)
        assert again.sources[name] == f"flag {settings.flag_of(name)}"


def test_variables_that_nothing_reads_are_found() -> None:
    env = {"REKNIT_SLOT": "1", "REKNIT_SLOTS": "1", "REKNIT_TRACE_DIR": "x", "PATH": "x", "PET_OTHER": "x"}
    assert settings.unknown_env(env) == [("REKNIT_SLOT", "REKNIT_SLOTS")]
