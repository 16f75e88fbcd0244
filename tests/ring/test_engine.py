"""The engine on real sockets: same bits for every history of the world."""

from __future__ import annotations

import dataclasses
import itertools
import os
import random
import threading
import time
from pathlib import Path

import pytest

from reknit.worker.work import Result
from support.rings import PretendWorker, Rings, wait_until

SLOTS, TOTAL = 8, 12


@pytest.fixture
def rings():
    r = Rings()
    yield r
    r.close()


@pytest.fixture(scope="module")
def calm() -> str:
    r = Rings()
    try:
        r.add(PretendWorker("a", slots=SLOTS, total=TOTAL))
        r.world(["a"])
        return r.finish(["a"])[0]
    finally:
        r.close()


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 10])
def test_same_bits_for_any_number_of_workers(rings, calm, count):
    names = [f"w{i}" for i in range(count)]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    rings.world(names)
    assert set(rings.finish(names)) == {calm}
    assert sorted(c for n in names for c in rings.workers[n].computed) == sorted(
        (t, s) for t in range(TOTAL) for s in range(SLOTS)
    )


def test_different_fresh_states_are_made_equal_before_the_first_step(rings, calm):
    names = ["a", "b", "c"]
    for i, n in enumerate(names):
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL, seed=i))
    rings.world(names)
    assert set(rings.finish(names)) == {calm}


def test_a_join_in_the_middle(rings, calm):
    for n in ("a", "b"):
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    gate = rings.workers["b"].pause_at(4, 5)
    rings.world(["a", "b"])
    wait_until(lambda: rings.workers["b"].paused)
    c = rings.add(PretendWorker("c", slots=SLOTS, total=TOTAL, seed=7))
    rings.world(["a", "b", "c"])
    gate.set()
    assert set(rings.finish(["a", "b", "c"])) == {calm}
    assert c.applied or c.shared.main_step == TOTAL


@pytest.mark.parametrize("seed", range(12))
def test_a_kill_at_any_moment_keeps_the_bits_and_the_survivors_work(rings, calm, seed):
    rng = random.Random(seed)
    names = ["a", "b", "c", "d"][: rng.choice([2, 3, 4])]
    victim = rng.choice(names)
    moment = (rng.randrange(1, TOTAL - 1), rng.randrange(SLOTS))
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
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


def test_a_kill_while_the_ring_is_being_mended(rings, calm):
    names = ["a", "b", "c", "d"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    rings.workers["b"].pause_at(4)
    rings.world(names)
    wait_until(lambda: rings.workers["b"].paused)
    rings.workers["b"].kill()
    rings.workers["c"].kill()
    rings.world(["a", "c", "d"])
    rings.world(["a", "d"])
    assert set(rings.finish(["a", "d"])) == {calm}


def test_only_one_survivor(rings, calm):
    names = ["a", "b", "c"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    rings.workers["a"].pause_at(4)
    rings.world(names)
    wait_until(lambda: rings.workers["a"].paused)
    rings.workers["a"].kill()
    rings.workers["c"].kill()
    rings.world(["b"])
    assert rings.finish(["b"]) == [calm]


def test_an_evicted_worker_comes_back_and_learns(rings, calm):
    names = ["a", "b", "c"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    gate = rings.workers["b"].pause_at(4, 3)
    rings.world(names)
    wait_until(lambda: rings.workers["b"].paused)
    rings.world(["a", "b"])
    wait_until(lambda: bool(rings.workers["c"].registered))
    rings.world(["a", "b", "c"])
    gate.set()
    assert set(rings.finish(names)) == {calm}


def test_a_drained_worker_leaves_at_a_step_boundary(rings, calm):
    names = ["a", "b", "c"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    gate = rings.workers["a"].pause_at(4)
    rings.world(names)
    wait_until(lambda: rings.workers["a"].paused)
    later = rings.workers["c"].pause_at(6)
    gate.set()
    b = rings.workers["b"]
    with b.shared.cv:
        b.shared.leaving = "asked"
    wait_until(lambda: b.shared.leaving == "idle")
    rings.world(["a", "c"])
    later.set()
    wait_until(lambda: b.outcome.startswith("left"))
    assert set(rings.finish(["a", "c"])) == {calm}


def test_two_hundred_world_changes_leave_no_residue(rings):
    """Members come and go; descriptors and threads are as many at the end as after the warm-up."""
    names = ["a", "b", "c"]
    total = 100_000
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=total))
    counts = []
    for change in range(200):
        rings.world(names if change % 2 == 0 else ["a", "b"])
        here = [rings.workers[n] for n in (names if change % 2 == 0 else ["a", "b"])]
        now = rings.workers["a"].shared.step
        wait_until(
            lambda here=here, now=now: all(w.shared.current and w.shared.step >= now + 1 for w in here),
            what=f"a step after change {change}",
        )
        if change % 2 == 1:
            wait_until(lambda change=change: len(rings.workers["c"].registered) >= change // 2 + 1)
        if change >= 20:
            counts.append((len(list(Path("/proc/self/fd").iterdir())), threading.active_count()))
    first, last = counts[: len(counts) // 2], counts[len(counts) // 2 :]
    assert max(f for f, _ in last) <= max(f for f, _ in first) + 2
    assert max(t for _, t in last) <= max(t for _, t in first) + 2
    assert rings.workers["a"].engine.links_made == 200
    assert not any(w.error for w in rings.workers.values())


@pytest.mark.parametrize("seed", range(int(os.environ.get("REKNIT_STORMS", "6"))))
def test_a_storm_of_kills_joins_and_evictions_keeps_the_bits(rings, seed):
    """Random histories; the seed says all. Raise REKNIT_STORMS for more of them."""
    rng = random.Random(seed)
    total = 60
    alone = Rings()
    try:
        alone.add(PretendWorker("x", slots=SLOTS, total=total))
        x = alone.workers["x"]
        alone.world(["x"])
        expected = alone.finish(["x"])[0]
        right = {f"{t.split()[1]} {t.split()[3]}" for t in x.trail if t.startswith("apply")}
    finally:
        alone.close()
    fresh = itertools.count()
    here = [
        rings.add(PretendWorker(f"w{next(fresh)}", slots=SLOTS, total=total)).name for _ in range(rng.randrange(1, 5))
    ]

    def begun(names) -> bool:
        return any(rings.workers[n].shared.current and rings.workers[n].shared.step > 0 for n in names)

    rings.world(here)
    history = [f"begin {here}"]
    beside: list[str] = []
    for _ in range(rng.randrange(4, 12)):
        until, deadline = rng.randrange(total), time.monotonic() + rng.random() * 0.02
        while time.monotonic() < deadline and all(rings.workers[n].shared.step < until for n in here):
            time.sleep(0.0005)
        if any(rings.workers[n].outcome for n in here):
            break
        event = rng.choice(["kill", "join", "evict", "same", "kill+join", "reorder", "beside", "beside", "let in"])
        victim = rng.choice(here)
        if "kill" in event and len(here) > 1 and (not begun(here) or begun([n for n in here if n != victim])):
            here.remove(victim)  # somebody with the state stays: without a checkpoint it would be lost with the last
            rings.workers[victim].kill()
        if "join" in event and len(here) < 6:
            # before the first step any fresh state may become the run's; after it a joiner's must not matter
            seed_of_joiner = 99 if begun(here) else 0
            joiner = rings.add(PretendWorker(f"w{next(fresh)}", slots=SLOTS, total=total, seed=seed_of_joiner))
            here.append(joiner.name)
        if event == "beside" and len(here) + len(beside) < 7:
            beside.append(rings.add(PretendWorker(f"w{next(fresh)}", slots=SLOTS, total=total, seed=99)).name)
            continue
        if event == "let in":  # whether they have caught up or not
            here += beside
            beside.clear()
        away = rng.choice(here)
        if event == "evict" and len(here) > 1 and (not begun(here) or begun([n for n in here if n != away])):
            before = len(rings.workers[away].registered)
            rings.world([n for n in here if n != away])
            wait_until(
                lambda away=away, before=before, first=here[0]: (
                    len(rings.workers[away].registered) > before
                    or rings.workers[away].outcome
                    or rings.workers[first].outcome
                ),
                what="the evicted one registers again",
            )
        if event == "reorder":
            rng.shuffle(here)
        planned = event in ("join", "same", "reorder", "let in") and rng.random() < 0.6
        history.append(f"{event} {victim} {planned}: {here} {[(n, rings.workers[n].shared.step) for n in here]}")
        rings.world(here, planned=planned)
    rings.world(here)
    over = [rings.workers[n].shared.generation for n in here if rings.workers[n].outcome]
    if over:  # over before the last ones came (back): the job tells those so
        here = [n for n in here if rings.workers[n].outcome or rings.workers[n].shared.generation == max(over)]
    got = set(rings.finish(here))
    wrong = [
        f"{w.name}: " + " | ".join(w.trail[: i + 1][-60:])
        for w in rings.workers.values()
        for i, t in enumerate(w.trail)
        if t.startswith("apply") and f"{t.split()[1]} {t.split()[3]}" not in right
    ]
    told = [*history, *(w.story() for w in rings.workers.values()), *wrong[:2]]
    assert got == {expected}, "\n".join(told)


def test_a_wrong_result_on_one_worker_is_found_at_the_next_step_and_healed(rings, calm):
    """One worker's result of one step is not what the others have (a bit that TCP's checksum let through, say)."""
    names = ["a", "b", "c"]
    for n in names:
        rings.add(PretendWorker(n, slots=SLOTS, total=TOTAL))
    b = rings.workers["b"]
    right = b.shared.complete

    def wrong(result: Result) -> None:
        if result.of.step == 5 and b.shared.generation == 1:
            result.buffer[100] ^= 64
            result.of = dataclasses.replace(result.of, chain=result.of.chain ^ 1)
        right(result)

    b.shared.complete = wrong
    rings.world(names)
    wait_until(lambda: any(type(e).__name__ == "RingBroken" for w in rings.workers.values() for e in w.outlet.events))
    told = [e for w in rings.workers.values() for e in w.outlet.events if type(e).__name__ == "RingBroken"]
    assert any("diverged" in e.error for e in told)
    rings.world(names)
    assert set(rings.finish(names)) == {calm}
