"""What the recovery benchmark makes of its events, and that it fails when it must."""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import recovery
import torchft_venv
from offspring import Offspring
from shock import Shock, befall
from steplog import Done, Reader
from system_reknit import stages

from reknit.core.bus import Received
from reknit.core.events import Event, RingBroken, RingLinked, WorldChanged

FINE = Shock(
    victim="n0-1",
    after=1.0,
    step=5,
    recover_s=0.05,
    gap_s=0.04,
    calm_gap_s=0.01,
    step_s=0.03,
    steps_lost=0,
    pids_kept=True,
    whole_again_s=1.0,
    join_gap_s=0.1,
    load_1m=1.0,
    others=0.0,
    at=0.0,
)
NEVER = replace(FINE, recover_s=None, gap_s=None, calm_gap_s=None, steps_lost=None, pids_kept=False)


def test_a_summary_has_exactly_the_promised_keys():
    shocks = [replace(FINE, recover_s=0.1), replace(FINE, recover_s=0.2), NEVER]
    assert recovery.summary("kill-worker", shocks) == {
        "recover_s": {"median": 0.15, "max": 0.2},
        "steps_lost": {"median": 0, "max": 0},
        "pids_kept": False,
        "unrecovered": 1,
    }
    assert recovery.summary("drain", shocks)["gap_s"] == {"median": 0.04, "max": 0.04}


@pytest.mark.parametrize("event", recovery.BARS)
def test_within_its_bars_it_misses_nothing(event):
    bar = recovery.BARS[event]
    at_the_bar = replace(FINE, recover_s=bar.median or bar.worst or 9.0, gap_s=bar.gap or 9.0)
    worst = replace(at_the_bar, recover_s=bar.worst or 9.0)
    assert recovery.misses(event, recovery.summary(event, [at_the_bar, at_the_bar, worst])) == []


@pytest.mark.parametrize(
    ("event", "bad", "word"),
    [
        ("kill-worker", [replace(FINE, recover_s=0.101)], "median recovery 0.101 s, bar 0.1 s"),
        ("kill-node", [replace(FINE, recover_s=0.101)], "median"),
        ("kill-worker", [FINE, FINE, replace(FINE, recover_s=0.51)], "worst recovery 0.51 s, bar 0.5 s"),
        ("silent-host", [FINE, FINE, replace(FINE, recover_s=2.01)], "worst"),
        ("freeze", [FINE, FINE, replace(FINE, recover_s=3.01)], "worst"),
        ("drain", [FINE, FINE, replace(FINE, gap_s=0.051)], "longest gap 0.051 s, bar 0.05 s"),
        ("drain", [replace(FINE, gap_s=None)], "longest gap None"),
        ("freeze", [FINE, replace(FINE, steps_lost=1)], "1 steps lost"),
        ("drain", [replace(FINE, steps_lost=None)], "not known"),
        ("silent-host", [FINE, replace(FINE, pids_kept=False)], "processes"),
        ("kill-worker", [FINE, NEVER], "1 events without recovery"),
        ("kill-worker", [], "median recovery None"),
        ("freeze", [], "worst recovery None"),
        ("drain", [], "longest gap None"),
    ],
)
def test_it_says_what_it_misses(event, bad, word):
    assert any(word in said for said in recovery.misses(event, recovery.summary(event, bad)))


class Written:
    """A system whose notes are written out: four steps, the event, and what the plot says of the time after it."""

    within = 0.2
    shocks_a_run = 0

    def __init__(self, folder: Path, after: list[tuple[int, int, float]], recovers: float | None) -> None:
        self.reader = Reader(folder)
        self._after = after
        self._recovers = recovers
        self.restored: list[str] = []

    def victims(self) -> dict[str, set[int]]:
        return {"a": {-1}, "b": {-2}}

    def strike(self, victim: str) -> float:
        at = time.time()
        me = self.me
        self.reader.done = [Done(i, 1, at - 0.4 + i / 10, me, "me", 1) for i in range(5)]
        self.reader.done += [Done(step, gen, at + seconds, me, "me", 1) for step, gen, seconds in self._after]
        self.at = at
        return at

    def recovered_at(self, before: set[int], survivors: set[int], at: float) -> float | None:
        assert before == survivors == {self.me}
        return None if self._recovers is None else at + self._recovers

    def restore(self, victim: str) -> None:
        self.restored.append(victim)


@pytest.fixture
def me(tmp_path, monkeypatch):
    """A living process that counts as a worker, and short waits."""
    monkeypatch.setattr("shock.AFTER", 0.05)
    monkeypatch.setattr("shock.MOMENT", (0.05, 0.1))
    with Offspring() as offspring:
        sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
        yield offspring, offspring.start(sleep, tag="me", log=tmp_path / "log", env={}, cwd=tmp_path).pid


def test_an_event_from_the_first_note_to_the_last(me, tmp_path):
    offspring, pid = me
    system = Written(tmp_path, [(5, 2, 0.15), (6, 2, 0.16), (7, 2, 0.17)], recovers=0.15)
    system.me = pid
    system.reader.done = [Done(0, 1, time.time(), pid, "me", 1)]
    shock = befall(system, offspring, 1, random.Random(0), Counter({"a": 3}))
    assert (shock.victim, system.restored) == ("b", ["b"])
    assert (shock.recover_s, shock.steps_lost, shock.pids_kept) == (0.15, 0, True)
    assert shock.step_s == pytest.approx(0.1)
    assert shock.gap_s == pytest.approx(0.05, abs=1e-3)
    assert shock.calm_gap_s == pytest.approx(0.0, abs=1e-3)


def test_an_event_that_is_not_recovered_from(me, tmp_path):
    offspring, pid = me
    system = Written(tmp_path, [], recovers=None)
    system.me = pid
    system.reader.done = [Done(0, 1, time.time(), pid, "me", 1)]
    shock = befall(system, offspring, 1, random.Random(0), Counter())
    assert (shock.recover_s, shock.gap_s, shock.steps_lost, shock.pids_kept) == (None, None, None, False)
    assert system.restored == []


def test_who_does_not_take_part_is_named_with_the_reason(monkeypatch):
    def nothing() -> Path:
        raise torchft_venv.NotInstalled("no such package")

    monkeypatch.setattr(recovery, "measure", lambda _name, _options: [FINE])
    options = recovery.Options("kill-worker")
    found = recovery.measured(["reknit", "torchft"], options, nothing)
    assert found["torchft"] == {"skipped": "no such package"}
    assert found["misses"] == []
    assert found["details"]["machine"]["load_1m"] >= 0
    found = recovery.measured(["torchrun"], recovery.Options("drain"), nothing)
    assert "drain" in found["torchrun"]["skipped"]


def test_a_python_without_torchft_is_refused_by_name():
    with pytest.raises(torchft_venv.NotInstalled, match="No module named 'torchft'"):
        torchft_venv.python(Path(sys.executable))


def test_torchft_is_kept_out_of_the_project(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert torchft_venv.folder().is_relative_to(tmp_path)
    root = Path(torchft_venv.__file__).resolve().parents[1]
    assert "torchft" not in (root / "pyproject.toml").read_text() + (root / "constraints.txt").read_text()


def test_stages_of_a_recovery_come_from_the_log():
    def received(time: float, event: Event) -> Received:
        return Received(event, "bench", 1, "id", "source", time, "")

    def linked(generation: int) -> Event:
        return RingLinked(worker="w", incarnation=1, generation=generation, step=1)

    world = WorldChanged(generation=3, run="r", status="running", removed=("x",))
    log = [
        received(9.0, RingBroken(worker="w", incarnation=1, generation=1, step=1, peer="x", side="next")),
        received(10.02, RingBroken(worker="w", incarnation=1, generation=2, step=1, peer="x", side="next")),
        received(10.03, world),
        received(10.05, linked(3)),
        received(10.04, linked(3)),
        received(11.0, linked(4)),
    ]
    assert stages(log, 10.0) == pytest.approx({"evidence": 0.02, "world": 0.03, "linked": 0.05})
    assert stages(log, 12.0) == {}
