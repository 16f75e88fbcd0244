"""Checkpoints of real runs: failures that come in the middle, and the last one of those who leave last."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from support.agents import until
from support.launchers import Command, Place
from support.tiny import TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def start(place: Place, nproc: int, *flags: str, epochs: int = 500) -> Command:
    script = place.script("tiny.py", TINY)
    argv = ("--job", "t", "--node", "n", "--nproc-per-node", str(nproc), *flags)
    run = place.start("run", *argv, str(script), "gate", str(epochs))
    run.until("loss ")
    return run


def put_in_the_way(folder: Path) -> None:
    """Have a file where the folder was, although workers make it anew."""
    for number in range(100):
        if folder.is_dir():
            folder.rename(folder.with_name(f"{folder.name}-{number}"))
        folder.touch()
        if folder.is_file():
            return
    raise AssertionError(f"{folder} is made anew again and again")


def failed(run: Command) -> list[str]:
    return [line for line in run.err if "checkpoint failed: " in line]


def committed(place: Place) -> int:
    return int(place.json("status", "--job", "t")["progress"]["committed"])


def newest(place: Place) -> int:
    rows = place.json("checkpoints", "ls", "--job", "t")
    return int(rows[0]["step"]) if rows else -1


@pytest.mark.parametrize("first", [True, False])
def test_a_folder_that_is_lost_in_the_middle_is_told_at_once_and_at_the_end(place: Place, first: bool) -> None:
    folder = place.folder / "ck"
    run = start(place, 2, "--checkpoint-dir", "ck", "--checkpoint-every-steps", "40" if first else "10")
    if not first:
        run.until("checkpoint of step ")
    put_in_the_way(folder)
    until(lambda: len(failed(run)) >= 2, "two failures", 90.0)
    until(lambda: "checkpoint-failed" in {told["event"]["alert"] for told in alerts(place)}, "the alert", 30.0)
    place.open("gate")
    assert run.wait() == 0, run.shown
    end = "no checkpoint was written: " if first else "the newest checkpoint is of step "
    told = [line for line in run.err[-6:] if end in line]
    assert len(told) == 1, run.shown
    assert "failed" in told[0]
    assert "File exists" in told[0]
    lines = [line for line in run.err if "cannot write to" in line and line not in told]
    assert lines == failed(run), "the line alone, no record of a worker and no alert"
    told_of = place.json("events", "--job", "t", "--area", "checkpoint")
    ids = {e["event"]["checkpoint"] for e in told_of if e["event"]["kind"] == "checkpoint.failed"}
    assert len(lines) <= len(ids), "each one once"
    assert "Traceback" not in run.shown
    place.nothing_left()


def alerts(place: Place) -> list[dict[str, dict[str, str]]]:
    return place.json("alerts", "--job", "t")  # type: ignore[no-any-return]


def test_a_folder_that_vanishes_with_its_parent_is_made_anew(place: Place) -> None:
    run = start(place, 2, "--checkpoint-dir", "far/ck", "--checkpoint-every-steps", "10")
    run.until("checkpoint of step ")
    (place.folder / "far").rename(place.folder / "away")
    before = run.shown.count("checkpoint of step ")
    until(lambda: run.shown.count("checkpoint of step ") > before + 1, "the next ones", 90.0)
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run.shown
    assert newest(place) == committed(place)


def test_the_last_worker_is_not_drained_and_does_not_leave_without_a_checkpoint(place: Place) -> None:
    run = start(place, 1)
    refused = place.call("drain", "n-0", "--job", "t", code=2)
    assert "n-0 is the last worker of job t" in refused.shown
    assert "reknit stop --job t" in refused.shown
    (worker,) = place.json("status", "--job", "t")["workers"]
    os.kill(worker["pid"], signal.SIGTERM)
    run.until("waiting for a worker")
    until(lambda: newest(place) > 0, "the last checkpoint", 60.0)
    assert newest(place) == committed(place)
    saved = newest(place)
    place.call("scale", "1", "--job", "t")
    run.until(f"(step {saved}", 90.0)
    place.call("stop", "--job", "t")
    assert run.wait() == 143, run.shown
    assert newest(place) == committed(place) > saved
    assert "no checkpoint was written" not in run.shown
    place.nothing_left()


@pytest.mark.parametrize("nproc", [1, 2])
def test_the_last_node_that_is_drained_leaves_a_checkpoint_of_its_last_step(place: Place, nproc: int) -> None:
    run = start(place, nproc)
    place.call("drain", "n", "--job", "t")
    assert run.wait() == 143, run.shown
    assert "stopped: t: its last node has left: drained" in run.shown
    assert newest(place) == committed(place) > 0
    assert f"newest checkpoint at step {newest(place)}: --resume goes on from it" in run.shown
    place.nothing_left()


def test_a_stop_after_all_are_gone_says_what_is_left(place: Place) -> None:
    run = start(place, 1, "--checkpoint-dir", "ck")
    put_in_the_way(place.folder / "ck")
    (worker,) = place.json("status", "--job", "t")["workers"]
    os.kill(worker["pid"], signal.SIGTERM)
    run.until("checkpoint failed: ", 90.0)
    run.until("waiting for a worker")
    stopped = place.call("stop", "--job", "t")
    assert "no worker is left that has the state of step " in stopped.shown
    assert "no last checkpoint is taken, there is none" in stopped.shown
    assert run.wait() == 143, run.shown
    assert "no checkpoint was written: 1 failed, the last: " in run.shown


def test_a_node_that_cannot_write_where_the_run_saves_does_not_join(place: Place) -> None:
    user = ("--user", "--map-root-user") if os.geteuid() != 0 else ()
    own = ("unshare", *user, "--mount", "--propagation", "private")
    mount = f"mount -t tmpfs -o ro tmpfs {place.folder}/ck"
    (place.folder / "ck").mkdir()
    if subprocess.run([*own, "sh", "-c", mount], check=False, capture_output=True).returncode:
        pytest.skip("no mount namespace here")
    start(place, 1, "--nnodes", "1:2", "--checkpoint-dir", "ck", "--checkpoint-every-steps", "10")
    wrap = (*own, "sh", "-c", f'{mount} && exec "$@"', "sh")
    argv = ("run", "--job", "t", "--node", "m", "--nnodes", "1:2", str(place.folder / "tiny.py"), "gate", "500")
    refused = place.call(*argv, code=2, wrap=wrap)
    assert f"job t keeps its checkpoints in {place.folder}/ck, and this node cannot write there: " in refused.shown
    assert "Read-only file system" in refused.shown
    assert "Traceback" not in refused.shown
    assert {m["node"] for m in place.json("world", "--job", "t")["members"]} == {"n"}
    place.open("gate")
    assert place.commands[0].wait() == 0
    place.nothing_left()
