"""How long training stands still when a process is killed, against torchrun: `python bench/recovery.py --json`.

Three workers train the same 1.0 M-parameter MLP, batch 64 in all, one thread each. A random worker (or node) is killed
at a random moment; after every optimizer step each worker notes the time. Per kill:

    recover_s    from the SIGKILL until the *last* survivor has completed its first step of a newer world;
                 torchrun: until the *first* new process has completed a step
    steps_lost   steps completed before the kill that were computed again after it
    pids_kept    the survivors are still the same processes

The next kill comes 0.5 to 1.5 s after the replacement has become active. Exit status 1 when reknit misses its limits.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import machine
import psutil
from figures import median_and_max
from job import SCRIPTS, Job, NotInTime, wait_for
from offspring import Offspring
from steplog import Reader, mended_at, newest, pause, restarted_at, steps_lost, whole

from reknit.core.bus import Received
from reknit.core.events import RingBroken, RingLinked, WorkerDying, WorkerExited, WorkerUnreachable, WorldChanged

MEDIAN_LIMIT = 0.15
"""Seconds that reknit's median recovery may take."""
WORST_LIMIT = 1.0
START = 120.0
"""Seconds until all workers must train, at the beginning and after a kill."""


@dataclass(frozen=True)
class Kill:
    """One kill and what came of it; times in seconds."""

    victim: str
    after: float
    """Delay after all were active."""
    step: int
    """Newest step completed before."""
    recover_s: float | None
    """None: not recovered in time."""
    steps_lost: int | None
    pids_kept: bool
    active_again_s: float | None
    """From the kill until the replacement computed its part of a step."""
    join_pause_s: float | None
    """Longest time without a step of any survivor between recovery and then."""
    load_1m: float
    at: float
    """Wall time."""
    stages: dict[str, float] | None = None
    """Seconds from the kill to the first evidence, the new world, and the last link of it, by the job's log."""


class System(Protocol):
    """One system under measurement."""

    within: float
    """Seconds to wait for a recovery."""

    def start(self) -> None:
        """Start all workers."""

    def victims(self) -> dict[str, set[int]]:
        """Name of what may be killed next -> pids of the workers that die with it."""

    def kill(self, victim: str) -> float:
        """Kill one; returns the wall time."""

    def replace(self, victim: str) -> None:
        """Start again what nobody else would start."""

    def recovered_at(self, before: set[int], survivors: set[int], killed_at: float) -> float | None:
        """When training had recovered; None: not yet."""

    def stages(self, kills: list[Kill]) -> list[Kill]:
        """Add what the system itself knows of the kills of this run."""

    def stop(self) -> None:
        """End all."""

    @property
    def reader(self) -> Reader:
        """The workers' notes."""


class Processes:
    """What both systems share: workers are known by their notes, and those on a node by its tag."""

    def __init__(self, offspring: Offspring, folder: Path, event: str) -> None:
        self.offspring = offspring
        self.event = event
        self.folder = folder
        self.steps = folder / "steps"
        self.steps.mkdir(parents=True)
        self.reader = Reader(self.steps)

    def workers(self) -> dict[str, set[int]]:
        """Living workers by name."""
        alive = set(self.offspring.alive())
        return {f"{d.worker}/{pid}": {pid} for pid, d in newest(self.reader.look()).items() if pid in alive}

    def on_node(self, node: str) -> set[int]:
        """Living workers of a node."""
        return set(self.offspring.alive(node)) & {d.pid for d in self.reader.look()}

    def kill_worker(self, victim: str) -> float:
        """SIGKILL one worker's process."""
        pid = int(victim.rpartition("/")[2])
        at = time.time()
        psutil.Process(pid).kill()
        return at


class Reknit(Processes):
    """`reknit run`; for whole nodes one of them a node over `reknit up`."""

    within = 60.0

    def __init__(self, offspring: Offspring, folder: Path, event: str, workers: int) -> None:
        super().__init__(offspring, folder, event)
        by_node = event == "kill-node"
        self.job = Job(
            offspring,
            folder,
            "steps_reknit.py",
            [str(self.steps)],
            workers=1 if by_node else workers,
            nodes=workers if by_node else 1,
            flags=["--max-restarts", "1000000"],
        )

    def start(self) -> None:
        """Start all workers."""
        self.job.start()

    def victims(self) -> dict[str, set[int]]:
        """Workers, or nodes."""
        if self.event == "kill-worker":
            return self.workers()
        return {node: self.on_node(node) for node in self.job.nodes}

    def kill(self, victim: str) -> float:
        """Kill one."""
        return self.kill_worker(victim) if self.event == "kill-worker" else self.job.kill_node(victim)

    def replace(self, victim: str) -> None:
        """A killed worker is replaced by its agent; a killed node is started again here."""
        if self.event == "kill-node":
            self.job.start_node(victim)

    def recovered_at(self, _before: set[int], survivors: set[int], killed_at: float) -> float | None:
        """When the last survivor had completed a step in a newer world."""
        return mended_at(self.reader.look(), survivors, killed_at)

    def stages(self, kills: list[Kill]) -> list[Kill]:
        """Add when the first evidence, the new world and its links were there."""
        if not kills:
            return kills
        with self.job.listening() as (_bus, log):
            return [replace(kill, stages=stages(log.received, kill.at)) for kill in kills]

    def stop(self) -> None:
        """End all."""
        self.job.stop()


class Torchrun(Processes):
    """torchrun with DDP over gloo, settings at their defaults but two.

    Restarts are not limited. torch 2.13 shares its rendezvous store with the workers by default, which makes
    half of all restarts over gloo hang; the switch that avoids it is set.
    """

    within = 180.0

    def __init__(self, offspring: Offspring, folder: Path, event: str, workers: int) -> None:
        super().__init__(offspring, folder, event)
        self.nodes = [f"n{i}" for i in range(workers if event == "kill-node" else 1)]
        self._each = workers // len(self.nodes)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def start(self) -> None:
        """Start all workers."""
        for node in self.nodes:
            self.replace(node)

    def victims(self) -> dict[str, set[int]]:
        """Workers, or nodes; not the first node, which hosts the store: without it the job is lost."""
        if self.event == "kill-worker":
            return self.workers()
        return {node: self.on_node(node) for node in self.nodes[1:]}

    def kill(self, victim: str) -> float:
        """Kill one."""
        return self.kill_worker(victim) if self.event == "kill-worker" else self.offspring.kill(victim)

    def replace(self, victim: str) -> None:
        """Start a node's agent."""
        if victim not in self.nodes:
            return
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self._each)]
        command += ["--max-restarts", "1000000"]
        if len(self.nodes) > 1:
            command += ["--nnodes", f"1:{len(self.nodes)}", "--rdzv-backend", "c10d", "--rdzv-id", "bench"]
            command += ["--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        else:
            command += ["--standalone"]
        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        command += [str(SCRIPTS / "steps_torchrun.py"), str(self.steps)]
        self.offspring.start(command, tag=victim, log=self.folder / "printed.log", env=env, cwd=self.folder)

    def recovered_at(self, before: set[int], _survivors: set[int], killed_at: float) -> float | None:
        """When the first new process had completed a step."""
        return restarted_at(self.reader.look(), before, killed_at)

    def stages(self, kills: list[Kill]) -> list[Kill]:
        """It tells nothing."""
        return kills

    def stop(self) -> None:
        """End all."""
        self.offspring.end()


SYSTEMS: dict[str, type[Reknit] | type[Torchrun]] = {"reknit": Reknit, "torchrun": Torchrun}


@dataclass(frozen=True)
class Options:
    """What to measure."""

    event: str
    workers: int
    kills: int
    seed: int
    keep: Path | None


def measure(name: str, options: Options) -> list[Kill]:
    """Kill so many times, in fresh runs if one does not recover."""
    draw = random.Random(options.seed)
    kills: list[Kill] = []
    run = 0
    while len(kills) < options.kills:
        run += 1
        with Offspring() as offspring, _folder(options.keep, f"{name}-{options.event}-{run}") as folder:
            system = SYSTEMS[name](offspring, folder, options.event, options.workers)
            these: list[Kill] = []
            try:
                system.start()
                _until_whole(system, offspring, options.workers, 0.0)
                for kill in _kills(system, offspring, options, draw, options.kills - len(kills)):
                    these.append(kill)
                    _say(f"{name}: {kill}")
            except NotInTime as late:
                _say(f"{name}: {late}")
                if not these or these[-1].recover_s is not None:
                    _say(_tail(folder / "printed.log"))
                    if run > options.kills:
                        raise
            kills += system.stages(these)
            system.stop()
    return kills


def _kills(system: System, offspring: Offspring, options: Options, draw: random.Random, count: int) -> Iterator[Kill]:
    for _ in range(count):
        after = draw.uniform(0.5, 1.5)
        time.sleep(after)
        kill = _kill(system, offspring, options.workers, draw, after)
        yield kill
        if kill.recover_s is None:
            raise NotInTime(f"no recovery within {system.within:g} s after the death of {kill.victim}")


def _kill(system: System, offspring: Offspring, workers: int, draw: random.Random, after: float) -> Kill:
    load = machine.load()
    victims = system.victims()
    victim = draw.choice(sorted(victims))
    before = _workers(system, offspring)
    survivors = before - victims[victim]
    step = max(one.step for one in system.reader.look())
    at = system.kill(victim)
    recovered = whole_at = None
    with contextlib.suppress(NotInTime):
        recovered = wait_for("recovery", lambda: system.recovered_at(before, survivors, at), system.within, every=0.05)
    if recovered is not None:
        system.replace(victim)
        whole_at = _until_whole(system, offspring, workers, at)
    done = system.reader.look()
    return Kill(
        victim=victim,
        after=round(after, 3),
        step=step,
        recover_s=round(recovered - at, 4) if recovered is not None else None,
        steps_lost=steps_lost(done, survivors, at, whole_at) if whole_at else None,
        pids_kept=whole_at is not None and survivors <= set(offspring.alive()),
        active_again_s=round(whole_at - at, 3) if whole_at else None,
        join_pause_s=round(pause(done, survivors, recovered, whole_at), 4) if recovered and whole_at else None,
        load_1m=load,
        at=at,
    )


def _workers(system: System, offspring: Offspring) -> set[int]:
    alive = set(offspring.alive())
    return {pid for pid in newest(system.reader.look()) if pid in alive}


def _until_whole(system: System, offspring: Offspring, workers: int, since: float) -> float:
    def look() -> float | None:
        done = system.reader.look()
        now = time.time()
        alive = set(offspring.alive()) if len({one.pid for one in done if one.time > since}) >= workers else set()
        return now if whole(done, alive, workers, max(since, now - 2.0)) else None

    return wait_for(f"{workers} workers at work", look, START, every=0.2)


@contextlib.contextmanager
def _folder(keep: Path | None, name: str) -> Iterator[Path]:
    if keep is not None:
        folder = keep.absolute() / name
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def stages(log: Sequence[Received], killed_at: float) -> dict[str, float]:
    """Return the seconds from a kill to what the job's log says of it; stages that it does not have are left out."""
    after = [r for r in log if r.time > killed_at]
    found: dict[str, float] = {}
    for received in after:
        event, seconds = received.event, round(received.time - killed_at, 4)
        match event:
            case RingBroken() | WorkerDying() | WorkerExited() | WorkerUnreachable():
                found.setdefault("evidence", seconds)
            case WorldChanged() if event.removed and "world" not in found:
                found["world"], generation = seconds, event.generation
            case RingLinked() if "world" in found and event.generation == generation:
                found["linked"] = max(seconds, found.get("linked", 0.0))
            case _:
                pass
    return found


def summary(kills: list[Kill]) -> dict[str, Any]:
    """Return a system's figures."""
    recovered = [k.recover_s for k in kills if k.recover_s is not None]
    return {
        "recover_s": median_and_max(recovered),
        "steps_lost": median_and_max([k.steps_lost for k in kills if k.steps_lost is not None], 1),
        "pids_kept": all(k.pids_kept for k in kills),
        "unrecovered": sum(k.recover_s is None for k in kills),
    }


def misses(figures: dict[str, Any]) -> list[str]:
    """Say which of reknit's limits its figures miss."""
    took, lost = figures["recover_s"], figures["steps_lost"]
    said = []
    if took["median"] is None or took["median"] > MEDIAN_LIMIT:
        said.append(f"median recovery {took['median']} s, limit {MEDIAN_LIMIT} s")
    if took["max"] is None or took["max"] > WORST_LIMIT:
        said.append(f"worst recovery {took['max']} s, limit {WORST_LIMIT} s")
    if figures["unrecovered"]:
        said.append(f"{figures['unrecovered']} kills without recovery")
    if lost["max"]:
        said.append(f"{lost['max']:g} steps lost")
    if not figures["pids_kept"]:
        said.append("survivors were not the same processes afterwards")
    return said


def measured(systems: list[str], options: Options) -> dict[str, Any]:
    """Measure the systems one after the other and return the document that is printed."""
    document: dict[str, Any] = {}
    details: dict[str, Any] = {"event": options.event, "workers": options.workers, "seed": options.seed}
    details["machine"] = machine.describe()
    for name in systems:
        kills = measure(name, options)
        document[name] = summary(kills)
        details[name] = [asdict(kill) for kill in kills]
    document["details"] = details
    if "reknit" in document:
        document["misses"] = misses(document["reknit"])
    return document


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--systems", default="reknit,torchrun", help="which, separated by commas")
    parser.add_argument("--event", choices=("kill-worker", "kill-node"), default="kill-worker")
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of victims and delays")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the jobs' folders (REKNIT_HOME of each) here")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    systems = args.systems.split(",")
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(f"there is no system {', '.join(unknown)}; known: {', '.join(SYSTEMS)}")
    document = measured(systems, Options(args.event, args.workers, args.kills, args.seed, args.keep))
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        for name in systems:
            print(name, json.dumps(document[name]))
    for miss in document.get("misses", []):
        _say(f"missed: {miss}")
    return 1 if document.get("misses") else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-2000:] if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
