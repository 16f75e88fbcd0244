"""Crews: real workers in real processes over a real broker, and a world log that the test writes itself.

    with Crew(endpoint, folder, "support.cases:train", case="digits") as crew:
        crew.start("w0", "w1", hold={"w1": (3, 1)})     # w1 waits in its second micro-batch of step 3
        crew.world("w0", "w1")
        crew.held("w1")
        crew.kill("w1")
        crew.world("w0")
        results = crew.finish("w0")                     # what the script returned, by worker

The script is `module:function`, called as `function(ring, gate, **options)` inside `with reknit.join() as ring`; with
the option `joins=False` as `function(gate, **options)`, and joins itself. It must be importable: processes are forked
from a server that has torch loaded, and nothing of the test's own threads.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import signal
import time
import traceback
import uuid
from collections.abc import Callable
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any, Self

from reknit.core.bus import Received
from reknit.core.bus_thread import BusThread
from reknit.core.context import WORKER, Endpoint, WorkerContext, to_env
from reknit.core.events import (
    AnyEvent,
    Event,
    JobSubmitted,
    Member,
    WorkerCaughtUp,
    WorkerPulse,
    WorkerRegistered,
    WorldChanged,
)

WITHIN = 60.0


def until(true: Callable[[], object], what: Callable[[], str], within: float = WITHIN) -> None:
    """Poll until `true()`."""
    end = time.monotonic() + within
    while not true():
        assert time.monotonic() < end, f"not within {within:g} s: {what()}"
        time.sleep(0.003)


class Gate:
    """Where a script can be held, as the script sees it; by files, so that it works over processes.

    Args:
        folder: the crew's.
        worker: who holds.
        at: (step, number of the worker's own micro-batch in it) where it holds, or None.
    """

    def __init__(self, folder: Path, worker: str, at: tuple[int, int] | None = None) -> None:
        self._folder, self._worker, self._at = folder, worker, at

    def pass_by(self, step: int, number: int) -> None:
        """Wait here if this is the place, until `Crew.go`."""
        if (step, number) == self._at:
            self.hold("gate")

    def hold(self, name: str) -> None:
        """Say that we are at a place, and wait there until `Crew.go`."""
        (self._folder / f"{name}.{self._worker}.held").touch()
        while not (self._folder / f"{name}.{self._worker}.go").exists():
            time.sleep(0.002)

    def wanted(self, name: str) -> bool:
        """True if the test wants this worker to hold at this place."""
        return (self._folder / f"{name}.{self._worker}.wanted").exists()


class Crew:
    """Workers of one job."""

    def __init__(self, endpoint: Endpoint, folder: Path, script: str, **options: Any) -> None:
        self.job = f"crew-{uuid.uuid4().hex[:8]}"
        self.run = "run-1"
        self.folder = folder / self.job
        self.folder.mkdir()
        self.script, self.options = script, options
        self.events: list[Received] = []
        self.pulses: dict[str, WorkerPulse] = {}
        self.processes: dict[str, ForkServerProcess] = {}
        self.generation = 0
        self.worlds: list[WorldChanged] = []
        self._endpoint = endpoint
        self.transport = "tcp"
        self._incarnations: dict[str, int] = {}
        self._context = server()
        self.bus = BusThread(endpoint, "test")

    def __enter__(self) -> Self:
        self.bus.start()
        self.bus.follow(self.events.append, job=self.job)
        self.bus.pulses(lambda _job, pulse: self._heard(pulse), job=self.job)
        self.publish(JobSubmitted(run=self.run, script=self.script, stuck_after=self.options.get("stuck_after", 120.0)))
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes.values():
            if process.is_alive():
                process.kill()
            process.join(10.0)
        self.bus.close(0.0)

    def _heard(self, pulse: object) -> None:
        if isinstance(pulse, WorkerPulse):
            self.pulses[pulse.worker] = pulse

    # ------------------------------------------------------------------------------------------------- workers

    def start(self, *names: str, hold: dict[str, tuple[int, int]] | None = None, **options: Any) -> None:
        """Start workers and wait until they have registered."""
        for name in names:
            self._incarnations[name] = self._incarnations.get(name, 0) + 1
            context = WorkerContext(
                endpoint=self._endpoint,
                job=self.job,
                run=self.run,
                node=f"node-{name}",
                worker=name,
                incarnation=self._incarnations[name],
                secret="secret",
                checkpoint_dir=str(self.folder / "checkpoints") if self.options.get("checkpoints") else "",
                transport=self.transport,
            )
            at = (hold or {}).get(name)
            process = self._context.Process(
                target=_work,
                args=(to_env(context), str(self.folder), self.script, at, self.options | options),
                name=name,
                daemon=True,
            )
            process.start()
            self.processes[name] = process
        until(lambda: all(self.registered(n) for n in names), lambda: f"{names} registered\n{self.story()}")

    def registered(self, name: str) -> WorkerRegistered | None:
        """The newest registration of a worker's present life."""
        found = [
            e
            for e in self.of(WorkerRegistered)
            if e.worker == name and e.incarnation >= self._incarnations.get(name, 1)
        ]
        return found[-1] if found else None

    def kill(self, name: str) -> None:
        """SIGKILL."""
        pid = self.processes[name].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        self.processes[name].join(10.0)

    def held(self, *names: str, place: str = "gate") -> None:
        """Wait until these workers are at the place where they hold."""
        files = [self.folder / f"{place}.{name}.held" for name in names]
        until(lambda: self._alive(names) and all(f.exists() for f in files), lambda: f"{names} held\n{self.story()}")

    def go(self, *names: str, place: str = "gate") -> None:
        """Let held workers go on."""
        for name in names:
            (self.folder / f"{place}.{name}.go").touch()

    def want(self, *names: str, place: str) -> None:
        """Let these workers hold at this place (`Gate.wanted`)."""
        for name in names:
            (self.folder / f"{place}.{name}.wanted").touch()

    def finish(self, *names: str, within: float = WITHIN) -> dict[str, Any]:
        """Wait until these have ended; what their scripts returned."""

        def over() -> bool:
            for name in names:
                self._alive([name])
            return all(self._result(name).exists() for name in names)

        until(over, lambda: f"{names} done\n{self.story()}", within)
        return {name: json.loads(self._result(name).read_text()) for name in names}

    def failure(self, name: str) -> str:
        """The traceback with which a worker ended, empty if it did not."""
        file = self.folder / f"{name}.failed"
        return file.read_text() if file.exists() else ""

    def _result(self, name: str) -> Path:
        return self.folder / f"{name}.{self._incarnations[name]}.result"

    def _alive(self, names: Any) -> bool:
        for name in names:
            process = self.processes[name]
            if process.exitcode not in (None, 0):
                raise AssertionError(f"{name} ended with {process.exitcode}\n{self.failure(name)}\n{self.story()}")
        return True

    # --------------------------------------------------------------------------------------------------- world

    def world(self, *names: str, planned: bool = False, **roles: str) -> None:
        """The next world: these workers, in this order."""
        self.generation += 1
        members = []
        for name in names:
            told = self.registered(name)
            assert told is not None, name
            members.append(
                Member(
                    worker=name,
                    incarnation=told.incarnation,
                    node=told.node,
                    pid=told.pid,
                    address=told.address,
                    role=roles.get(name, "active"),  # type: ignore[arg-type]
                )
            )
        world = WorldChanged(
            generation=self.generation, run=self.run, status="running", members=tuple(members), planned=planned
        )
        self.worlds.append(world)
        self.publish(world)

    def pause(self) -> None:
        """The next world has nobody in it, and waits."""
        self.generation += 1
        world = WorldChanged(generation=self.generation, run=self.run, status="paused", awaiting="workers")
        self.worlds.append(world)
        self.publish(world)

    def join(self, name: str, *others: str, **more: Any) -> None:
        """Start a worker, let it catch up as a candidate, and make a world of the others with it at the end."""
        self.start(name, **more)
        until(lambda: self.caught_up(name), lambda: f"{name} caught up\n{self.story()}")
        self.world(*others, name, planned=True)

    def caught_up(self, name: str) -> bool:
        """True if this life of the worker has said that it has caught up."""
        return any(e.worker == name and e.incarnation >= self._incarnations[name] for e in self.of(WorkerCaughtUp))

    # -------------------------------------------------------------------------------------------------- events

    def publish(self, event: Event) -> None:
        """Store an event of the test's own."""
        self.bus.publish(self.job, event)

    def of(self, kind: type[AnyEvent]) -> list[Any]:
        """All events of a kind heard so far."""
        return [r.event for r in list(self.events) if isinstance(r.event, kind)]

    def story(self) -> str:
        """What may be of interest when a test hangs."""
        states = [f"{n}: exit {p.exitcode}, {self.pulses.get(n)}" for n, p in self.processes.items()]
        kinds = [f"{r.seq} {r.source} {type(r.event).__name__}" for r in list(self.events)[-40:]]
        failed = [self.failure(n) for n in self.processes]
        return "\n".join([*states, *kinds, *failed])


def server() -> ForkServerContext:
    """The server that workers are forked from; it has everything loaded that scripts need."""
    context = multiprocessing.get_context("forkserver")
    # the first optimizer made in a process imports torch._dynamo, for seconds
    context.set_forkserver_preload(["torch", "torch._dynamo", "reknit", "reknit.worker.session"])
    return context


def _work(context: str, folder: str, script: str, at: tuple[int, int] | None, options: dict[str, Any]) -> None:
    """One worker, from its fork to its end."""
    import torch

    import reknit

    torch.set_num_threads(1)
    os.environ[WORKER] = context
    told = json.loads(context)
    name, life = told["worker"], told["incarnation"]
    here = Path(folder)
    module, _, function = script.partition(":")
    run = getattr(importlib.import_module(module), function)
    try:
        if options.pop("joins", True):
            with reknit.join() as ring:
                result = run(ring, Gate(here, name, at), **options)
        else:
            result = run(Gate(here, name, at), **options)
        new = here / f"{name}.{life}.new"
        new.write_text(json.dumps(result))
        new.rename(here / f"{name}.{life}.result")
    except BaseException:
        (here / f"{name}.failed").write_text(traceback.format_exc())
        raise


def alone(script: str, folder: Path, **options: Any) -> Any:
    """Run a script in a world of one, without any broker, in this process."""
    import torch

    import reknit

    module, _, function = script.partition(":")
    run = getattr(importlib.import_module(module), function)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with reknit.join() as ring:
            result = run(ring, Gate(folder, ring.id), **options)
    finally:
        torch.set_num_threads(threads)
    return json.loads(json.dumps(result))
