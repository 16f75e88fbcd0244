"""Whole rings whose sums go over gloo: the same bits for every history, kills in every phase, joins, storms."""

from __future__ import annotations

import os
import random
import threading
import time
from pathlib import Path

import pytest

from reknit.worker.transport import gloo
from support.rings import PretendWorker, Rings, wait_until

SLOTS, TOTAL = 8, 12


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """What gloo forgets to wake lingers for so long."""
    monkeypatch.setattr(gloo, "PATIENCE", 3.0)


@pytest.fixture
def rings():
    r = Rings()
    yield r
    r.close()


def worker(name, *, total=TOTAL, seed=0, used=None) -> PretendWorker:
    return PretendWorker(name, slots=SLOTS, total=total, seed=seed, used=used, exact=True)


def alone(total=TOTAL, used=None) -> str:
    r = Rings()
    try:
        r.add(worker("x", total=total, used=used))
        r.world(["x"])
        return r.finish(["x"])[0]
    finally:
        r.close()


@pytest.fixture(scope="module")
def calm() -> str:
    return alone()


@pytest.mark.parametrize("count", [2, 3, 5, 10])
def test_same_bits_for_any_number_of_workers(rings, calm, count):
    names = [f"w{i}" for i in range(count)]
    for n in names:
        rings.add(worker(n))
    rings.world(names)
    assert set(rings.finish(names)) == {calm}
    assert sorted(c for n in names for c in rings.workers[n].computed) == sorted(
        (t, s) for t in range(TOTAL) for s in range(SLOTS)
    )


def test_the_bits_are_those_of_exact_sums_not_of_the_fold(calm):
    r = Rings()
    try:
        r.add(PretendWorker("x", slots=SLOTS, total=TOTAL))
        r.world(["x"])
        assert r.finish(["x"])[0] != calm
    finally:
        r.close()


def test_an_uneven_tail(rings):
    """The last slots of a step hold no samples: whoever owns them has nothing to add, and may own nothing else."""

    def used(step):
        return 3 if step % 2 else SLOTS

    expected = alone(used=used)
    for n in ("a", "b", "c", "d"):
        rings.add(worker(n, used=used))
    rings.world(["a", "b", "c", "d"])
    assert set(rings.finish(["a", "b", "c", "d"])) == {expected}


def test_a_join_in_the_middle(rings, calm):
    for n in ("a", "b"):
        rings.add(worker(n))
    gate = rings.workers["b"].pause_at(4, 5)
    rings.world(["a", "b"])
    wait_until(lambda: rings.workers["b"].paused)
    c = rings.add(worker("c", seed=7))
    rings.world(["a", "b", "c"])
    gate.set()
    assert set(rings.finish(["a", "b", "c"])) == {calm}
    assert c.applied or c.shared.main_step == TOTAL


@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_moment_keeps_the_bits_and_the_survivors_work(rings, calm, seed):
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"][: rng.choice([2, 3, 4])]
    victim = rng.choice(names)
    moment = (rng.randrange(1, TOTAL - 1), rng.randrange(SLOTS))
    for n in names:
        rings.add(worker(n))
    w = rings.workers[victim]
    w.pause_at(*moment)
    rings.world(names)
    wait_until(lambda: w.paused)
    w.kill()
    rest = [n for n in names if n != victim]
    rings.world(rest)
    assert set(rings.finish(rest)) == {calm}
    for n in rest:
        done = rings.workers[n].computed
        assert len(done) == len(set(done)), "a survivor computed a slot twice"
        assert rings.workers[n].applied == list(range(TOTAL))


def test_spares_take_part_without_slots(rings, calm):
    for n in ("a", "b", "s"):
        rings.add(worker(n))
    gate = rings.workers["a"].pause_at(3)
    rings.world(["a", "b", "s"], s="spare")
    wait_until(lambda: rings.workers["a"].paused)
    rings.workers["b"].kill()
    rings.world(["a", "s"])
    gate.set()
    assert set(rings.finish(["a", "s"])) == {calm}
    assert rings.workers["s"].computed


def test_a_planned_world_cuts_nothing_off(rings, calm):
    for n in ("a", "b"):
        rings.add(worker(n))
    gate = rings.workers["a"].pause_at(5)
    rings.world(["a", "b"])
    wait_until(lambda: rings.workers["a"].paused)
    rings.world(["a", "b"], planned=True)
    gate.set()
    assert set(rings.finish(["a", "b"])) == {calm}
    done = rings.workers["a"].computed + rings.workers["b"].computed
    assert len(done) == len(set(done))
    assert rings.workers["a"].engine.links_made == 2


@pytest.mark.parametrize("seed", range(int(os.environ.get("REKNIT_STORMS", "4"))))
def test_a_storm_keeps_the_bits(rings, seed):
    """Kills, joins, re-orderings, worlds in a row; the seed says all. Raise REKNIT_STORMS for more of them."""
    rng = random.Random(1000 + seed)
    total = 40
    expected = alone(total)
    here = [rings.add(worker(f"w{number}", total=total)).name for number in range(rng.randrange(2, 5))]
    rings.world(here)
    history = [str(here)]
    for number in range(rng.randrange(4, 9)):
        until, deadline = rng.randrange(total), time.monotonic() + rng.random() * 0.1
        while time.monotonic() < deadline and all(rings.workers[n].shared.step < until for n in here):
            time.sleep(0.0005)
        if any(rings.workers[n].outcome for n in here):
            break
        started = [n for n in here if rings.workers[n].shared.current and rings.workers[n].shared.step > 0]
        event = rng.choice(["kill", "join", "same", "kill+join", "reorder"])
        victim = rng.choice(here)
        if "kill" in event and len(here) > 1 and (not started or set(started) - {victim}):
            here.remove(victim)
            rings.workers[victim].kill()
        if "join" in event:
            here.append(rings.add(worker(f"j{number}", total=total, seed=99 if started else 0)).name)
        if event == "reorder":
            rng.shuffle(here)
        history.append(f"{event} {victim}: {here}")
        rings.world(here)
    rings.world(here)
    over = [rings.workers[n].shared.generation for n in here if rings.workers[n].outcome]
    if over:
        here = [n for n in here if rings.workers[n].outcome or rings.workers[n].shared.generation == max(over)]
    got = set(rings.finish(here))
    assert got == {expected}, "\n".join([*history, *(w.story() for w in rings.workers.values())])


def test_thirty_world_changes_leave_no_residue(rings):
    names = ["a", "b", "c"]
    for n in names:
        rings.add(worker(n, total=100_000))
    counts = []
    for change in range(30):
        here = names if change % 2 == 0 else ["a", "b"]
        rings.world(here)
        now = rings.workers["a"].shared.step
        wait_until(
            lambda here=here, now=now: all(
                rings.workers[n].shared.current and rings.workers[n].shared.step >= now + 1 for n in here
            ),
            what=f"a step after change {change}",
        )
        wait_until(
            lambda: sum(t.name == "gloo-close" for t in threading.enumerate()) == 0, what="groups that were left end"
        )
        if change >= 10:
            counts.append((len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))))
    half = len(counts) // 2
    assert min(f for f, _ in counts[half:]) <= min(f for f, _ in counts[:half]) + 2, counts
    assert min(t for _, t in counts[half:]) <= min(t for _, t in counts[:half]) + 2, counts
    assert not any(w.error for w in rings.workers.values())
