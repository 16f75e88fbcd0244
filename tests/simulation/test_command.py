"""`reknit sim membership`: lines for people, a document for programs, one sentence for what makes no sense."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reknit.services.membership.simulation.__main__ import main
from reknit.services.membership.simulation.measure import Order, baseline, measure


def reknit(*words: str, given: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "reknit.cli", "sim", "membership", *words]
    return subprocess.run(command, input=given, capture_output=True, text=True, check=False, timeout=100)


def test_a_document_with_what_came_out_and_memberlist_beside_it() -> None:
    done = reknit("--nodes", "40", "--crash", "4", "--loss", "1%", "--seed", "7", "--baseline", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert 0.9 < found["first_s"] <= found["last_s"] <= found["known_s"] < 2.2
    assert (found["world_changes"], found["false_evictions"]) == (1, 0)
    assert 10 < found["msgs_per_node_s"] < 40
    assert 100 < found["bytes_per_node_s"] < 10_000
    assert found["asked"] == {
        "nodes": 40, "crash": 4, "loss": 0.01, "seed": 7, "preset": "train", "starved": 0.0, "seconds": 6.0,
    }  # fmt: skip
    beside = found["memberlist"]
    assert 5 < beside["first_s"] <= beside["last_s"] < 20
    assert beside["world_changes"] >= 1
    assert measure(Order(40, 4, 0.01, 7)).digest == found["digest"]


def test_lines_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--nodes", "30", "--preset", "fast", "--starved", "10%", "--seconds", "3"]) == 0
    said = capsys.readouterr().out
    assert "30 nodes, preset fast, 0% loss, 10% of the nodes starved, seed 1" in said
    assert "world changes           1" in said
    assert main(["--nodes", "10", "--crash", "0", "--seconds", "5"]) == 0
    assert "nothing happens for 5 s: 0 world changes" in capsys.readouterr().out


def test_a_scenario_from_a_file_and_from_standard_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = "nodes 12\nhubs 2  # one is spare\n\nat 3 crash 2 killed\n"
    file = tmp_path / "scenario"
    file.write_text(lines)
    assert main(["--scenario", str(file), "--seed", "3"]) == 0
    said = capsys.readouterr().out
    assert " 10 -2 +0 " in said
    assert "0 violations" in said
    done = reknit("--scenario", "-", "--seed", "3", given=lines)
    assert done.stdout == said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--nodes", "1"), "--nodes is from 2 to 20000"),
        (("--nodes", "5", "--crash", "5"), "--crash is less than --nodes"),
        (("--loss", "130%"), "130% is no share"),
        (("--preset", "slow"), "invalid choice: 'slow'"),
        (("--scenario", "/nowhere/at/all"), "No such file"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_line(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1


def test_a_scenario_that_makes_no_sense_is_refused_by_its_line() -> None:
    done = reknit("--scenario", "-", given="nodes 10\nat 3 explode 1\n")
    assert done.returncode == 2
    assert "no such fault: 'explode'" in done.stderr


def test_memberlist_is_as_it_is_known_to_be() -> None:
    """50 nodes, 1 % loss: detected after 8.5 s in the median, 12.4 s in the worst of a hundred, nobody falsely."""
    firsts = []
    for seed in range(5):
        found = baseline(Order(50, 1, 0.01, seed))
        assert found.first_s is not None
        assert found.false_evictions == 0
        firsts.append(found.first_s)
    assert 7.5 < sorted(firsts)[2] < 10.5
    assert max(firsts) < 13.0
