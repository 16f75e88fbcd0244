"""Real workers on hosts of their own, and a network that fails: silence, resets, lost paths, slow ones, splits.

Each host is a network namespace (support.hosts; no root is needed, only `ip`, `ss`, `tc` and user namespaces). One job
runs through all tests; after the last one every step that any worker ever completed is compared with the calm run's.
By default three breaks are tried; all of them by

    pytest -m slow tests/breaks/test_hosts.py

How long each took goes into the file that REKNIT_TIMES names; nothing here is asserted of it beyond a deadline.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from support.agents import until
from support.breaks import record
from support.stages import Stage
from support.trainings import MEND, Training

pytestmark = pytest.mark.timeout(300)


@contextlib.contextmanager
def nobody_is_evicted(run: Training) -> Iterator[float]:
    """Whatever happens in here, no world is made without a worker that lives; and every process lives on."""
    at = run.now()
    pids = {w: run.worker(w) for w in run.everybody}
    yield at
    assert run.evicted(at) == set()
    assert {w: run.worker(w) for w in run.everybody} == pids


# -------------------------------------------------------------------------------------------------- silence


def gone(run: Training, *nodes: str) -> None:
    """These hosts are off the network for a while: the others go on without them, then they come back as themselves."""
    lost = {f"{node}-0" for node in nodes}
    pids = {w: run.worker(w) for w in run.everybody}
    before = {m["worker"]: m["incarnation"] for m in run.world()["members"]}
    at = run.now()
    for node in nodes:
        run.hosts.unplug(run.host(node))
    try:
        record(f"hosts gone: {len(nodes)} of {len(run.nodes)}", run.mended(at, run.everybody - lost), level="hosts")
        run.goes_on(run.everybody - lost)
        assert run.evicted(at) == lost
        silent = run.now()
    finally:
        for node in nodes:
            run.hosts.plug(run.host(node))
    run.whole(run.now())
    record("hosts are back", run.now() - silent, level="hosts")
    assert {w: run.worker(w) for w in run.everybody} == pids, "a process was started anew"
    after = {m["worker"]: m["incarnation"] for m in run.world()["members"]}
    assert all(after[w] > before[w] for w in lost), "who was out comes back as a new member"


def test_a_host_is_gone_without_a_word_and_comes_back(run: Training) -> None:
    gone(run, run.ring()[1][0])


@pytest.mark.slow
@pytest.mark.parametrize("places", [(0,), (3,), (1, 2), (0, 3), (0, 1, 2)])
def test_hosts_are_gone_wherever_they_stand(run: Training, places: tuple[int, ...]) -> None:
    ring = run.ring()
    gone(run, *(ring[place][0] for place in places))


# -------------------------------------------------------------------------------------------------- links


def test_a_reset_of_the_connection_between_two_that_live(run: Training) -> None:
    first, second = (run.host(w) for w in run.ring()[:2])
    with nobody_is_evicted(run) as at:
        assert run.hosts.reset(first, second)
        record("connection reset", run.mended(at, run.everybody), level="hosts")


def lost(run: Training, one_way: str = "") -> None:
    """The path between two neighbours loses what they send, and tells nobody: the ring goes round it."""
    sender, receiver, *_ = run.ring()
    a, b = run.host(sender), run.host(receiver)
    with nobody_is_evicted(run) as at:
        try:
            if one_way != "back":
                run.hosts.lose(a, b)
            if one_way != "forth":
                run.hosts.lose(b, a)
            record(f"path lost {one_way or 'both ways'}", run.mended(at, run.everybody), level="hosts")
            run.goes_on(run.everybody, 10)
            ring = run.ring()
            place = ring.index(sender)
            assert receiver not in (ring[place - 1], ring[(place + 1) % len(ring)]), f"still neighbours: {ring}"
        finally:
            run.hosts.heal(a, b)
    told = " ".join(e["error"] for e in run.events("ring.broken", at))
    assert "timed out" in told
    run.whole()


def test_a_path_that_loses_everything_is_routed_round(run: Training) -> None:
    lost(run)


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["forth", "back"])
def test_a_path_that_loses_one_direction_is_routed_round(run: Training, direction: str) -> None:
    lost(run, direction)


@pytest.mark.slow
def test_a_slow_host_makes_steps_slow_and_nothing_else(run: Training) -> None:
    slow = run.host(run.ring()[1])
    with nobody_is_evicted(run) as at:
        worlds = len(run.events("world.changed"))
        try:
            run.hosts.slow(slow, "2mbit")
            run.goes_on(run.everybody, 8)
        finally:
            run.hosts.fast(slow)
        record("slow host, eight steps", run.now() - at, level="hosts")
        assert len(run.events("world.changed")) == worlds
    run.whole()


# -------------------------------------------------------------------------------------------------- splits


@pytest.mark.slow
def test_of_two_halves_only_that_with_the_log_goes_on(run: Training) -> None:
    """Two hosts reach neither the other two nor the broker, and both halves have as many as the job needs."""
    here, there = run.nodes[:2], run.nodes[2:]
    at = run.now()
    run.hosts.split(*(run.host(node) for node in there))
    try:
        record("split in two halves", run.mended(at, [f"{n}-0" for n in here]), level="hosts")
        run.goes_on([f"{n}-0" for n in here], 50)  # time for the other half to do something, if it would
        away = [s for s in run.steps() if s.worker[0] in there and s.time > at + 1.0]
        assert away == [], "both halves commit steps"
    finally:
        for node in there:
            run.hosts.plug(run.host(node))
    run.whole(run.now())


@pytest.mark.slow
def test_of_two_halves_that_both_reach_the_log_one_goes_on(run: Training) -> None:
    """No ring order avoids this split: after some tries two are put out, and come back when it is over."""
    pids = {w: run.worker(w) for w in run.everybody}
    halves = [{f"{n}-0" for n in part} for part in (run.nodes[:2], run.nodes[2:])]
    pairs = [(run.host(a), run.host(b)) for a in run.nodes[:2] for b in run.nodes[2:]]
    at = run.now()
    try:
        for a, b in pairs:
            run.hosts.cut(a, b)
        until(lambda: run.evicted(at), "somebody is put out", MEND)
        out = run.evicted(at)
        assert out in halves
        stay = run.everybody - out
        record("split of the ring alone: one half goes on", run.mended(at, stay), level="hosts")
        world = next(e for e in run.events("world.changed", at) if e["removed"])
        assert set(world["apart"]) == out
        assert "no order of the ring avoids the links that cannot be made" in world["reason"]
        for worker in out:
            run.event("monitor.alert", at, alert="ring-split", subject=worker, state="raised")
        run.goes_on(stay, 50)
        assert set(run.ring()) == stay
        away = [s for s in run.steps() if s.worker in out and s.generation >= world["generation"]]
        assert away == [], "both halves commit steps"
    finally:
        for a, b in pairs:
            run.hosts.heal(a, b)
    healed = run.now()
    run.whole(healed)
    record("split of the ring alone, after it is over", run.now() - healed, level="hosts")
    assert {w: run.worker(w) for w in run.everybody} == pids, "a process was started anew"
    for worker in out:
        run.event("monitor.alert", at, alert="ring-split", subject=worker, state="cleared")


@pytest.mark.slow
def test_who_reaches_one_of_the_others_only_is_out_and_held_down(run: Training) -> None:
    """It can learn from that one, so it comes in again and again; the others wait for it less and less."""
    lonely, *others = run.nodes
    worker, rest = f"{lonely}-0", {f"{n}-0" for n in others}
    pids = {w: run.worker(w) for w in run.everybody}
    at = run.now()
    try:
        for other in others[:2]:
            run.hosts.cut(run.host(lonely), run.host(other))
        record("reaches one of three: the others go on", run.mended(at, rest), level="hosts")
        held = run.event("node.held", at, within=2 * MEND, node=lonely, cause="flapping")
        assert run.evicted(at) == {worker}
        times = [e["at"] for e in run.events("world.changed", at) if worker in e["apart"]]
        assert len(times) >= 2
        run.until_trains(rest)
        run.goes_on(rest, 5)
        assert held["seconds"] >= 5.0
    finally:
        for other in others[:2]:
            run.hosts.heal(run.host(lonely), run.host(other))
    run.whole()
    assert {w: run.worker(w) for w in run.everybody} == pids, "a process was started anew"


# -------------------------------------------------------------------------------------------------- frozen, killed


def frozen(run: Training, which: str) -> None:
    """Stop processes of a host until the others go on without it, then let them run again."""
    worker = run.ring()[2]
    node = worker[0]
    pid = run.worker(worker)
    agent = [p for p in run.pids(node, "reknit.worker.agent") if p != pid]
    pids = {"worker": [pid], "agent and worker": [*agent, pid], "whole node": run.pids(node)}[which]
    at = run.signal(signal.SIGSTOP, *pids)
    try:
        record(f"stopped: {which}", run.mended(at, run.everybody - {worker}), level="hosts")
        run.goes_on(run.everybody - {worker}, 5)
    finally:
        run.signal(signal.SIGCONT, *pids)
    run.whole(run.now())
    assert run.evicted(at) == {worker}
    assert run.worker(worker) == pid, "it was started anew"


@pytest.mark.slow
@pytest.mark.parametrize("which", ["worker", "agent and worker", "whole node"])
def test_who_is_frozen_is_left_out_and_comes_back(run: Training, which: str) -> None:
    frozen(run, which)


@pytest.mark.slow
@pytest.mark.parametrize("places", [(0,), (1,), (3,), (0, 1), (0, 1, 2)])
def test_killed_workers_are_replaced_and_nobody_else(run: Training, places: tuple[int, ...]) -> None:
    ring = run.ring()
    victims = {ring[place] for place in places}
    rest = run.everybody - victims
    pids = {w: run.worker(w) for w in run.everybody}
    at = run.signal(signal.SIGKILL, *(pids[w] for w in victims))
    record(f"workers killed: {len(victims)} of 4", run.mended(at, rest), level="hosts")
    run.whole(run.now())
    assert {w: run.worker(w) for w in rest} == {w: pids[w] for w in rest}, "a survivor was started anew"
    assert all(run.worker(w) != pids[w] for w in victims)
    again = sum(e["computed_again"] for e in run.events("ring.recovered", at))
    assert again <= 2 * len(victims) + 2, "more was computed again than the dead had"


@pytest.mark.slow
def test_a_node_is_killed_and_started_again(run: Training) -> None:
    worker = run.ring()[1]
    node = worker[0]
    at = run.signal(signal.SIGKILL, *run.pids(node))
    record("node killed", run.mended(at, run.everybody - {worker}), level="hosts")
    run.goes_on(run.everybody - {worker})
    run.launchers[node].wait()
    run.start_node(node)
    run.whole(run.now())


# -------------------------------------------------------------------------------------------------- one after another


def killed(run: Training, worker: str) -> None:
    run.signal(signal.SIGKILL, run.worker(worker))


def unplugged(run: Training, worker: str) -> None:
    run.hosts.unplug(run.host(worker))


def cut_off(run: Training, worker: str) -> None:
    other = next(w for w in run.ring() if w != worker)
    run.hosts.reset(run.host(worker), run.host(other))


FAULTS = {"killed": killed, "unplugged": unplugged, "reset": cut_off}


@pytest.mark.slow
@pytest.mark.parametrize("second", FAULTS)
@pytest.mark.parametrize("first", ["killed", "unplugged"])
def test_a_second_break_while_the_first_is_mended(run: Training, first: str, second: str) -> None:
    """The moment that the world without the first one is known, another is hit."""
    ring = run.ring()
    pids = {w: run.worker(w) for w in run.everybody}
    at = run.now()
    try:
        FAULTS[first](run, ring[1])
        run.event("world.changed", at)
        FAULTS[second](run, ring[3])
        left = {ring[0], ring[2]} | ({ring[3]} if second == "reset" else set())
        again = run.now()
        record(f"{first}, then {second}", run.mended(again, left), level="hosts")
        run.goes_on(left, 5)
    finally:
        for worker in (ring[1], ring[3]):
            run.hosts.plug(run.host(worker))
    run.whole(run.now())
    assert {w: run.worker(w) for w in left} == {w: pids[w] for w in left}


HECKLER = """
import random, socket, sys, time
draw, addresses, until = random.Random(int(sys.argv[1])), sys.argv[2].split(","), time.monotonic() + float(sys.argv[3])
kept = []
while time.monotonic() < until:
    host, _, port = draw.choice(addresses).rpartition(":")
    try:
        sock = socket.create_connection((host, int(port)), timeout=0.5)
        sock.sendall(draw.choice([b"", b"GET / HTTP/1.1\\r\\n\\r\\n", draw.randbytes(300), bytes(64)]))
        kept.append(sock)
    except OSError:
        pass
    while len(kept) > 30:
        kept.pop(0).close()
    time.sleep(0.005)
"""


@pytest.mark.slow
def test_garbage_at_every_port_while_workers_die(run: Training) -> None:
    addresses = ",".join(m["address"] for m in run.world()["members"])
    hecklers = [
        subprocess.Popen([*run.host(node).wrap, sys.executable, "-c", HECKLER, str(seed), addresses, "12"])
        for seed, node in enumerate(run.nodes)
    ]
    try:
        for victim in run.ring()[:2]:
            at = run.signal(signal.SIGKILL, run.worker(victim))
            record("worker killed, garbage at every port", run.mended(at, run.everybody - {victim}), level="hosts")
            run.whole(run.now())
    finally:
        for heckler in hecklers:
            heckler.kill()
            heckler.wait()


# -------------------------------------------------------------------------------------------------- the end


def test_after_all_of_it_every_step_is_the_calm_runs(stage: Stage) -> None:
    if stage.run is None:
        pytest.skip("no job is left")
    assert stage.run.check() > 3
    stage.close()
