"""Stand-ins for agents and workers: real processes with real connections, listeners and heartbeats, and no training.

`python tests/support/stand_ins.py '<json>'` with `endpoint`, `job`, `run`, `node`, `workers` (names): an agent that
starts its workers as children which die with it, reaps them, says what it sees, and does not start them again. With
`worker` and `incarnation` instead of `workers`: one of these workers.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.events import (
    AgentJoined,
    NodePulse,
    Terms,
    WorkerCaughtUp,
    WorkerExited,
    WorkerPulse,
    WorkerRegistered,
    WorkerStarted,
    WorkerStuck,
    WorldChanged,
)

TERMS = Terms(slots=8, micro_batch=4, samples=320, epochs=1, seed=0, parameters=("w float32 4x2",))
_PR_SET_PDEATHSIG = 1
BEAT = 0.25


async def worker(told: dict[str, Any]) -> None:
    """Register, beat, catch up at once with a ring that runs, and come back when a world goes on without us."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != told["parent"]:
        return  # it died before we could ask for the signal
    name, incarnation, generation = told["worker"], told["incarnation"], 0
    caught_up = False
    listener = socket.create_server(("127.0.0.1", 0))
    bus = await Bus.connect(Endpoint(**told["endpoint"]), source=name)

    def register() -> None:
        bus.post(
            told["job"],
            WorkerRegistered(
                worker=name,
                incarnation=incarnation,
                node=told["node"],
                run=told["run"],
                pid=os.getpid(),
                address=f"127.0.0.1:{listener.getsockname()[1]}",
                terms=TERMS,
                client_id=bus.client_id,
                has_state_of=generation,
            ),
        )

    def catch_up(ring: int) -> None:
        nonlocal caught_up
        caught_up = True
        bus.post(told["job"], WorkerCaughtUp(worker=name, incarnation=incarnation, generation=ring, step=1))

    def heard(received: Received) -> None:
        nonlocal incarnation, generation, newest
        world = received.event
        if not isinstance(world, WorldChanged) or world.run != told["run"]:
            return
        newest = world
        if (name, incarnation) in {(m.worker, m.incarnation) for m in world.members}:
            generation = world.generation

    newest: WorldChanged | None = None
    await bus.follow(heard, job=told["job"], areas=["world"], from_seq=0)
    register()
    while True:
        inside = newest is not None and newest.generation == generation
        if newest is not None and not inside and newest.status == "running" and newest.members:
            if generation:
                incarnation, generation, caught_up = incarnation + 1, 0, False
                register()
            if not caught_up:
                catch_up(newest.generation)
        await bus.beat(
            told["job"],
            WorkerPulse(
                worker=name, incarnation=incarnation, generation=generation, step=1, committed=1, phase="compute"
            ),
        )
        await asyncio.sleep(BEAT)


async def agent(told: dict[str, Any]) -> None:
    """Start the workers, reap them, report their states."""
    job, node, run = told["job"], told["node"], told["run"]
    bus = await Bus.connect(Endpoint(**told["endpoint"]), source=f"agent/{node}")
    bus.post(
        job,
        AgentJoined(
            node=node, run=run, host="127.0.0.1", pid=os.getpid(), nproc=len(told["workers"]), client_id=bus.client_id
        ),
    )
    stuck: set[str] = set()
    processes: dict[str, asyncio.subprocess.Process] = {}
    incarnation = told.get("incarnation", 1)

    async def watch(name: str) -> None:
        process = processes[name]
        code = await process.wait()
        bus.post(job, WorkerExited(worker=name, incarnation=incarnation, node=node, pid=process.pid, code=code))

    watching = []
    for name in told["workers"]:
        mine = {**told, "worker": name, "incarnation": incarnation, "parent": os.getpid()}
        mine.pop("workers")
        processes[name] = await asyncio.create_subprocess_exec(sys.executable, __file__, json.dumps(mine))
        bus.post(job, WorkerStarted(worker=name, incarnation=incarnation, node=node, pid=processes[name].pid))
        watching.append(asyncio.create_task(watch(name)))
    while True:
        states = {name: state_of(p.pid) for name, p in processes.items() if p.returncode is None}
        for name, state in states.items():
            if (state == "T") != (name in stuck):
                stuck ^= {name}
                said = "T stopped" if state == "T" else "R running"
                bus.post(job, WorkerStuck(worker=name, incarnation=incarnation, node=node, state=said))
        await bus.beat(job, NodePulse(node=node, workers=states))
        await asyncio.sleep(BEAT)


def state_of(pid: int) -> str:
    """Kernel state letter of a process, `X` if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


class Agent:
    """One agent process with its workers, for a `with`: all of them are gone afterwards."""

    def __init__(self, endpoint: Endpoint, node: str, count: int = 1, *, incarnation: int = 1) -> None:
        self.node = node
        self.names = [f"{node}-{i}" for i in range(count)]
        self._told = {
            "endpoint": {f: getattr(endpoint, f) for f in endpoint.__struct_fields__},
            "job": "j",
            "run": "r1",
            "node": node,
            "workers": self.names,
            "incarnation": incarnation,
        }
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self._process = subprocess.Popen([sys.executable, __file__, json.dumps(self._told)])
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the agent; its workers die with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(10)


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    asyncio.run(worker(given) if "worker" in given else agent(given))
