"""How long until everybody knows: `python bench/membership_events.py --json`.

Real broker, services, launchers, agents and workers (a tiny model, a pause after each step). Something happens to some
of them, and what is measured is the time until `world.changed` without them has been delivered to *all* that are left:
the connection of each surviving worker, of each agent, and of a plain subscriber.

    kill_worker_ms   SIGKILL of a worker's process, one worker on each of three nodes
    kill_agent_ms    SIGKILL of an agent and its worker
    kill_node_ms     SIGKILL of all processes of a node: launcher, agent, guard, forkserver, worker (no bar: nobody
                     is left there to tell; it takes until the kernel has freed their memory and closed their sockets)
    silence_s        a host's port on the bridge goes down (each node in a network namespace of its own)
    ten_at_once      SIGKILL of ten of twelve workers on three nodes: how many worlds until all ten are out

A process notes an arrival itself, when the message is handed to what follows the log in it (noting/sitecustomize.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
from figures import median_and_max
from hosts import Hosts, NoNetworks, own_network
from job import Job, Log, NotInTime, wait_for
from offspring import Offspring
from system_reknit import stages

from reknit.core.bus import Received
from reknit.core.events import AgentJoined, WorldChanged

BARS = {"kill_worker": 15.0, "kill_agent": 30.0, "silence": 2000.0}
"""Milliseconds: median of the first two, worst of the third."""
NODES = 3
A_NODE = 4
"""Workers of a node where ten are killed."""
TEN = 10
WITHIN = 60.0
WHOLE_WITHIN = 120.0
MOMENT = (1.5, 2.5)
"""An event comes so many seconds after all were at work, at random: heartbeats have become regular by then."""
KILLS_A_WORKER = 3
"""After so many an agent waits longer and longer before it starts a worker again: a fresh run begins."""
PAUSE = 0.05
NOTING = Path(__file__).resolve().parent / "noting"


@dataclass(frozen=True)
class Event:
    """One event and what came of it; milliseconds from the signal (taken right before it is sent).

    Attributes:
        victims: workers that it hit.
        delivered_ms: until all below had the world without them.
        subscriber_ms: a plain subscriber had it.
        workers_ms: each surviving worker, in no particular order.
        agents_ms: each surviving agent.
        worlds: worlds until all victims were out.
        stages: seconds to the first evidence, the first world, and its links.
        load_1m: load of the machine right before.
        others: share of the machine that others used from the event until all was delivered.
    """

    victims: tuple[str, ...]
    delivered_ms: float
    subscriber_ms: float
    workers_ms: tuple[float, ...]
    agents_ms: tuple[float, ...]
    worlds: int
    stages: dict[str, float]
    load_1m: float
    others: float


class Scene:
    """A job, where worlds arrive, and what can be done to it."""

    def __init__(self, offspring: Offspring, folder: Path, workers: int, hosts: Hosts | None = None) -> None:
        """Prepare; `begin` starts it."""
        self._offspring, self._hosts, self._workers = offspring, hosts, workers
        self._notes = folder / "arrivals.jsonl"
        self._notes.touch()
        (folder / "steps").mkdir()
        env = {"BENCH_NOTES": str(self._notes), "PYTHONPATH": str(NOTING)}
        self.job = Job(
            offspring,
            folder,
            "steps_tiny.py",
            [str(folder / "steps"), str(PAUSE)],
            workers=workers,
            nodes=NODES,
            flags=["--max-restarts", "1000000"],
            env=env,
            hosts=hosts,
        )
        self.log = Log()
        self._heard: dict[int, float] = {}

    @contextlib.contextmanager
    def begin(self) -> Iterator[None]:
        """Start the job and hear its events; it is stopped in the end."""
        self.job.start()
        with self.job.listening() as (_bus, log):
            self.log = log
            log.on_event(self._hear)
            yield
        self.job.stop()

    def _hear(self, received: Received) -> None:
        if isinstance(received.event, WorldChanged):
            self._heard[received.seq] = time.time()

    def heard_at(self, seq: int) -> float:
        """When this process, a plain subscriber, had the world of a sequence."""
        wait_for("the subscriber", lambda: seq in self._heard, WITHIN)
        return self._heard[seq]

    @property
    def world(self) -> WorldChanged:
        """The newest world."""
        return self.log.of(WorldChanged)[-1]

    def until_whole(self) -> WorldChanged:
        """Wait until all workers are active in one world, and processes of theirs that live."""

        def look() -> WorldChanged | None:
            worlds = self.log.of(WorldChanged)
            if not worlds or worlds[-1].status != "running" or len(worlds[-1].members) != NODES * self._workers:
                return None
            alive = set(self._offspring.alive())
            nodes = {m.node for m in worlds[-1].members}
            return (
                worlds[-1] if all(m.pid in alive for m in worlds[-1].members) and nodes == set(self.job.nodes) else None
            )

        return wait_for(f"{NODES * self._workers} workers in the world", look, WHOLE_WITHIN, every=0.05)

    def agents(self) -> dict[str, int]:
        """Node -> pid of its agent, as they announced themselves last."""
        return {e.node: e.pid for e in self.log.of(AgentJoined) if e.node in self.job.nodes}

    def kill(self, victims: Collection[str]) -> float:
        """SIGKILL these workers, one right after the other; when."""
        return self._kill([m.pid for m in self.world.members if m.worker in victims])

    def kill_agent(self, node: str) -> float:
        """SIGKILL a node's agent and its workers, one right after the other; when."""
        return self._kill([self.agents()[node], *(m.pid for m in self.world.members if m.node == node)])

    @staticmethod
    def _kill(pids: Sequence[int]) -> float:
        with contextlib.suppress(PermissionError):  # else the first to die take our turn, and the rest live on for long
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))
        at = time.time()
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        return at

    def kill_node(self, node: str) -> float:
        """SIGKILL all processes of a node; when."""
        return self.job.kill_node(node)

    def silence(self, node: str) -> float:
        """Take the port of a node's host down; when."""
        assert self._hosts is not None
        return self._hosts.silence(self.job.host_of[node])

    def replace(self, node: str) -> None:
        """Start another node in the place of one that is gone."""
        self.job.kill_node(node)  # its launcher may be there still
        if self._hosts is not None:
            self._hosts.hear(self.job.host_of[node])
        self.job.replace_node(node)

    def arrivals(self, seq: int, pids: Collection[int]) -> dict[int, float]:
        """Wait until the world of a sequence has come to all of these processes; when to each."""

        def look() -> dict[int, float] | None:
            lines = map(json.loads, self._notes.read_text().splitlines())
            at = {line["pid"]: line["time"] for line in lines if line["seq"] == seq and line["pid"] in pids}
            return at if len(at) == len(pids) else None

        return wait_for(f"world {seq} to all of {sorted(pids)}", look, WITHIN, every=0.05)


def befall(
    scene: Scene, offspring: Offspring, victims: Collection[str], how: Callable[[], float], lost_node: str = ""
) -> Event:
    """Let something happen and return what came of it.

    Args:
        scene: with all workers at work.
        offspring: its processes.
        victims: workers that it will cost.
        how: does it; returns when.
        lost_node: the node that is lost with them.
    """
    before = scene.world
    left = [m.pid for m in before.members if m.worker not in victims]
    agents = [pid for node, pid in scene.agents().items() if node != lost_node]
    load, busy = machine.load(), machine.Busy.now(offspring)
    at = how()

    def out() -> list[Received] | None:
        after = [r for r in scene.log.received if isinstance(r.event, WorldChanged)]
        after = [r for r in after if r.event.generation > before.generation and set(r.event.removed) & set(victims)]
        gone = {name for r in after for name in r.event.removed}
        return after if gone >= set(victims) else None

    worlds = wait_for(f"the world without {', '.join(victims)}", out, WITHIN, every=0.02)
    last = worlds[-1].seq
    came = scene.arrivals(last, {*left, *agents})
    others = machine.Busy.now(offspring).others_since(busy)
    subscriber = scene.heard_at(last)

    def ms(moment: float) -> float:
        return round(1e3 * (moment - at), 1)

    return Event(
        victims=tuple(victims),
        delivered_ms=ms(max([*came.values(), subscriber])),
        subscriber_ms=ms(subscriber),
        workers_ms=tuple(ms(came[pid]) for pid in left),
        agents_ms=tuple(ms(came[pid]) for pid in agents),
        worlds=len(worlds),
        stages=stages(scene.log.received, at),
        load_1m=load,
        others=round(others, 2),
    )


class Series:
    """Events of all kinds, each kind in jobs of its own.

    Args:
        seed: of victims and moments.
    """

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(seed)

    def kill_worker(self, count: int) -> list[Event]:
        """Kill one worker after the other, those first that were hit least."""
        found: list[Event] = []
        while len(found) < count:
            with self._scene(1) as (scene, offspring):
                hit: Counter[str] = Counter()
                for _ in range(min(count - len(found), KILLS_A_WORKER * NODES)):
                    names = [m.worker for m in self._calm(scene).members]
                    least = min(hit[name] for name in names)
                    victim = self._draw.choice([name for name in names if hit[name] == least])
                    hit[victim] += 1
                    found.append(self._said(befall(scene, offspring, [victim], lambda v=victim: scene.kill([v]))))
        return found

    def kill_agent(self, count: int) -> list[Event]:
        """Kill one agent with its worker after the other; each node is replaced by another one."""
        return self._nodes(count, Scene.kill_agent)

    def kill_node(self, count: int) -> list[Event]:
        """Kill one node after the other; each is replaced by another one."""
        return self._nodes(count, Scene.kill_node)

    def silence(self, count: int) -> list[Event]:
        """Let one host after the other fall silent; each node is replaced by another one."""
        return self._nodes(count, Scene.silence, apart=True)

    def _nodes(self, count: int, how: Callable[[Scene, str], float], *, apart: bool = False) -> list[Event]:
        found: list[Event] = []
        if not count:
            return found
        with self._scene(1, apart=apart) as (scene, offspring):
            for number in range(count):
                world = self._calm(scene)
                node = self._draw.choice(scene.job.nodes)
                victims = [m.worker for m in world.members if m.node == node]
                found.append(self._said(befall(scene, offspring, victims, lambda n=node: how(scene, n), node)))
                if number + 1 < count:
                    scene.replace(node)
        return found

    def ten_at_once(self, count: int) -> list[Event]:
        """Kill ten of twelve workers at once, again and again."""
        found: list[Event] = []
        if not count:
            return found
        with self._scene(A_NODE) as (scene, offspring):
            for _ in range(count):
                names = [m.worker for m in self._calm(scene).members]
                victims = self._draw.sample(names, TEN)
                found.append(self._said(befall(scene, offspring, victims, lambda v=victims: scene.kill(v))))
        return found

    def _calm(self, scene: Scene) -> WorldChanged:
        scene.until_whole()
        time.sleep(self._draw.uniform(*MOMENT))
        return scene.until_whole()

    @contextlib.contextmanager
    def _scene(self, workers: int, *, apart: bool = False) -> Iterator[tuple[Scene, Offspring]]:
        with (
            tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path,
            Offspring() as offspring,
        ):
            hosts = Hosts(offspring, Path(path)) if apart else None
            scene = Scene(offspring, Path(path), workers, hosts)
            try:
                with scene.begin():
                    yield scene, offspring
            except NotInTime:
                print(scene.job.printed(), file=sys.stderr)
                raise
            if hosts is not None:
                offspring.end()
                hosts.close()

    @staticmethod
    def _said(event: Event) -> Event:
        print(event, file=sys.stderr, flush=True)
        return event


def document(series: Series, counts: dict[str, int]) -> dict[str, Any]:
    """Let everything happen and return what is printed."""
    found: dict[str, Any] = {"machine": machine.describe()}
    events = {kind: getattr(series, kind)(count) for kind, count in counts.items()}
    for kind in ("kill_worker", "kill_agent", "kill_node"):
        found[f"{kind}_ms"] = median_and_max([e.delivered_ms for e in events[kind]], 1)
    found["silence_s"] = median_and_max([e.delivered_ms / 1000 for e in events["silence"]], 3)
    found["ten_at_once"] = {
        "world_changes": max((e.worlds for e in events["ten_at_once"]), default=None),
        "ms": median_and_max([e.delivered_ms for e in events["ten_at_once"]], 1),
    }
    found["details"] = {kind: [asdict(event) for event in these] for kind, these in events.items()}
    found["load_1m_at_end"] = machine.load()
    found["misses"] = misses(found, counts)
    return found


def misses(found: dict[str, Any], counts: dict[str, int]) -> list[str]:
    """Say which bars are missed, of what was measured."""
    said = []
    for kind in ("kill_worker", "kill_agent"):
        median = found[f"{kind}_ms"]["median"]
        if counts[kind] and (median is None or median > BARS[kind]):
            said.append(f"{kind}: all knew after {median} ms in the median, bar {BARS[kind]:g}")
    worst = found["silence_s"]["max"]
    if counts["silence"] and (worst is None or worst > BARS["silence"] / 1000):
        said.append(f"silence: all knew after {worst} s, bar {BARS['silence'] / 1000:g}")
    changes = found["ten_at_once"]["world_changes"]
    if counts["ten_at_once"] and changes != 1:
        said.append(f"ten at once: {changes} changes of the world, bar 1")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Exit status 1 if a bar is missed: medians of {BARS['kill_worker']:g} ms (worker) and "
        f"{BARS['kill_agent']:g} ms (agent and worker), {BARS['silence'] / 1000:g} s at worst for silence, one change "
        "of the world for ten. They are meant for a machine with two cores that does nothing else.",
    )
    parser.add_argument("--kill-worker", type=int, default=18, help="times that a worker is killed; 0 leaves it out")
    parser.add_argument("--kill-agent", type=int, default=18, help="the same for agents with their workers")
    parser.add_argument("--kill-node", type=int, default=9, help="the same for nodes")
    parser.add_argument("--silence", type=int, default=3, help="the same for silent hosts; needs network namespaces")
    parser.add_argument("--ten", type=int, default=3, help="times that ten are killed at once")
    parser.add_argument("--seed", type=int, default=0, help="of victims and moments")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    if args.silence:
        try:
            own_network()
        except NoNetworks as error:
            parser.exit(1, f"no network namespaces here, --silence 0 leaves them out: {error}\n")
    counts = {
        "kill_worker": args.kill_worker,
        "kill_agent": args.kill_agent,
        "kill_node": args.kill_node,
        "silence": args.silence,
        "ten_at_once": args.ten,
    }
    found = document(Series(args.seed), counts)
    short = {name: value for name, value in found.items() if name not in ("details", "machine")}
    print(json.dumps(found if args.json else short, indent=2))
    for miss in found["misses"]:
        print(f"missed: {miss}", file=sys.stderr)
    return 1 if found["misses"] else 0


if __name__ == "__main__":
    sys.exit(main())
