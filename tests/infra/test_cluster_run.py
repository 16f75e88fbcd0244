"""A job that trains over a cluster of three brokers, and loses the one that leads its log in the middle of it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.agents import until
from support.clusters import Cluster
from support.launchers import Place
from support.trainings import PACE, SCRIPT, STEPS_AN_EPOCH, Notes, calm

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EPOCHS = 120
"""More than pass before the test lets the script go at full speed."""


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    try:
        yield made
    finally:
        made.clean()


@pytest.mark.parametrize("killed", [(), ("n-0",), ("n-0", "n-1")], ids=["nobody", "a worker", "all workers"])
def test_the_broker_that_leads_the_log_dies_and_the_run_ends_as_if_nothing_had_been(
    place: Place, tmp_path: Path, killed: tuple[str, ...]
) -> None:
    steps = tmp_path / "steps"
    steps.mkdir()
    notes = Notes(steps)
    (tmp_path / "brokers").mkdir()
    with Cluster(tmp_path / "brokers") as cluster:
        hosts = cluster.endpoint.url.replace("nats://", "")
        flags = ("--nats", f"nats://reknit:p-one@{hosts}", "--job", "t", "--node", "n", "--nproc-per-node", "2")
        save = ("--checkpoint-every-seconds", "1")
        script = str(place.script("train.py", SCRIPT))
        run = place.start(
            "run",
            *flags,
            *save,
            script,
            str(steps),
            str(PACE),
            str(EPOCHS),
            "-1",
            env=place.env | {"OMP_NUM_THREADS": "1"},
        )
        try:
            until(lambda: len({s.worker for s in notes.read() if s.step > 8}) == 2, "both train", 120.0)
            saved = until(lambda: place.json("checkpoints", "ls", "--job", "t"), "a checkpoint", 60.0)
            assert saved
            leader = asyncio.run(cluster.leader())
            pids = {s.worker: s.pid for s in notes.read()}
            cluster.kill(leader)
            for worker in killed:
                os.kill(pids[worker], signal.SIGKILL)
            assert asyncio.run(cluster.leader()) != leader
            known = max(s.step for s in notes.read())
            assert known < EPOCHS * STEPS_AN_EPOCH - 1, "the run was over before there was a new leader"
            until(lambda: _stored(place) > known, "steps that were committed after the election are on the log", 120.0)
            (steps / "go").touch()
            assert run.wait(180.0) == 0, run.shown
        except AssertionError as error:
            raise AssertionError(f"{error}\n{run.shown}") from None
        proof = place.json("ledger", "verify", "--job", "t")
        assert proof["ok"], proof
        assert proof["steps"] == EPOCHS * STEPS_AN_EPOCH
        worlds = [w["generation"] for w in place.json("world", "--history", "--job", "t")]
        assert worlds == list(range(1, len(worlds) + 1))
    done = notes.read()
    expected = calm(tmp_path / "calm", EPOCHS * STEPS_AN_EPOCH)
    assert [s for s in done if s.digest != expected[s.step]] == []
    assert {s.step for s in done} == set(expected)
    assert len({(s.pid, s.step) for s in done}) == len(done), "a process completed a step twice"
    assert ({s.worker: s.pid for s in done} == pids) == (not killed)
    place.nothing_left()


def _stored(place: Place) -> int:
    """Steps whose commit the log has."""
    return int(place.json("status", "--job", "t")["progress"]["committed"])
