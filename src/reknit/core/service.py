"""The service runner: one loop for all services, which themselves are pure reducers.

Used like this, in a service's app.py: `asyncio.run(run_service("shards", initial=…, decide=…))`.

Principle: a service's state changes only by what is on the log. `decide` may ask for publications; the state that
follows from them comes when they come back from the log. So reading the log from its beginning gives the same state, a
service that was killed between hearing and publishing decides again at its next live input (a tick at the latest), and
two of a kind do no harm: equal ids are stored once, and the world log is compare-and-set.

While the log is read at the start (`Told.live` is False) everything asked for is dropped: it was done already, or the
first tick asks for it again. What is asked for again while it is still under way is not done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import math
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from reknit.core import log, telemetry
from reknit.core.bus import Bus, Received
from reknit.core.context import ENDPOINT, Endpoint, from_env
from reknit.core.decision import Decision, Disconnected, Out, Tick, Told
from reknit.core.errors import ReknitError
from reknit.core.events import AnyPulse, JobFinished, JobSubmitted, kind_of
from reknit.core.presence import announce
from reknit.core.publications import Publications
from reknit.core.registry_entry import Health
from reknit.core.undone import Undone

__all__ = ["PING", "Decision", "Disconnected", "Out", "Runner", "Tick", "Told", "run_process", "run_service"]

PING = "ping"
INSTANCE = "REKNIT_INSTANCE"
_CONNECT_TIMEOUT = 60.0
_GARBAGE = (20_000, 20, 50)
"""Thresholds of the garbage collector. What a reducer makes has no cycles, so counting references frees it; a full
collection takes 25 to 80 ms where a thousand workers are known, and came every few seconds."""
_LAST_WORDS = 2.0  # seconds for what is under way when the service is told to end
_MEASURE_EVERY = 30.0  # seconds between two looks at the broker's clock
_TICKS_AFTER_END = 30.0  # seconds that a finished job still gets ticks
_FAILING = 60.0  # seconds that a failed input is shown in the registry
_REASON = 200  # characters of it

S = TypeVar("S")


@dataclass(slots=True)
class _Job(Generic[S]):
    state: S
    seq: int = 0
    ended: float = 0.0  # when the newest event after job.finished was heard, 0: it runs
    said: str = ""
    actions: asyncio.Queue[Any] = field(default_factory=asyncio.Queue)
    pending: set[Any] = field(default_factory=set)
    worker: asyncio.Task[None] | None = None
    alarm: asyncio.TimerHandle | None = None


async def run_service(
    name: str,
    *,
    initial: Callable[[str], S],
    decide: Callable[[S, Told], Decision[S]],
    tick: float = 0.1,
    pulses: bool = False,
    disconnects: bool = False,
    act: Callable[[Bus, str, Any], Awaitable[None]] | None = None,
    span: str = "decide",
    beside: Callable[[Bus, Runner[S]], AbstractAsyncContextManager[None]] | None = None,
    lease: bool = False,
) -> None:
    """Run a service until SIGTERM or SIGINT; connects by the environment variable `REKNIT_ENDPOINT`.

    Answers `ping` with JSON: service, pid, ready (the log was read), acts (see `lease`), seq, jobs, errors.

    Args:
        name: the service's name; also the source of its events.
        initial: makes the state of a job that was not heard of before.
        decide: the reducer; if it raises, that is logged with the job, the state stays, and the next input comes.
        tick: seconds between ticks.
        pulses: hear heartbeats.
        disconnects: hear ends of connections, where the broker tells them.
        act: does one action of `Decision.do`; if it raises, that is logged, and the reducer may ask again.
        span: each publication is a trace span `<name>.<span>`, child of the input that led to it.
        beside: what else the service has (a page, more answers): entered once the bus is connected, left at the end.
        lease: of several such processes only one acts, the others decide along and take over when it is gone. With
            `REKNIT_INSTANCE` set, say to `standby`, it answers as `<name>-standby`, so that each is asked for itself.

    Raises:
        UsageError: the environment variable is missing or wrong.
        ControlPlaneUnreachable: no broker answers within a minute.
        Unauthorized: the broker refuses us.
    """
    log.setup(name)
    telemetry.setup(f"reknit-{name}")
    gc.set_threshold(*_GARBAGE)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not on the main thread
            loop.add_signal_handler(number, ended.set)
    endpoint = from_env(ENDPOINT, Endpoint)
    bus = await Bus.connect(endpoint, source=name, timeout=_CONNECT_TIMEOUT)
    runner = Runner(name, bus, initial=initial, decide=decide, act=act, span=span, lease=lease)
    announce(bus, name, lambda: runner.health, runner.about)
    try:
        async with beside(bus, runner) if beside is not None else contextlib.nullcontext():
            await runner.run(ended, tick=tick, pulses=pulses, disconnects=disconnects)
    finally:
        await bus.close()
        telemetry.flush()


def run_process(name: str, service: Coroutine[Any, Any, None]) -> None:
    """Run a service as the whole process: what ends it is one sentence on stderr and an exit code, no traceback."""
    try:
        asyncio.run(service)
    except ReknitError as error:
        sys.stderr.write(f"{name}: {error}" + (f" ({error.hint})" if error.hint else "") + "\n")
        sys.exit(error.exit_code)


class Runner(Generic[S]):
    """One running service over a bus that is connected; `run_service` is the usual way to it.

    Attributes:
        about: what the service adds to its answer to a ping.
    """

    def __init__(
        self,
        name: str,
        bus: Bus,
        *,
        initial: Callable[[str], S],
        decide: Callable[[S, Told], Decision[S]],
        act: Callable[[Bus, str, Any], Awaitable[None]] | None = None,
        span: str = "decide",
        lease: bool = False,
    ) -> None:
        self._name = name
        instance = os.environ.get(INSTANCE, "")
        self._answers_as = f"{name}-{instance}" if instance else name
        self._lease = bus.lease(name, self._act_now) if lease else None
        self._undone = Undone()
        self._bus = bus
        self._initial = initial
        self._decide = decide
        self._act = act
        self._publications = Publications(bus, f"{name}.{span}")
        self._log = log.get("service")
        self._jobs: dict[str, _Job[S]] = {}
        self._live = False
        self._seq = 0
        self.about: dict[str, Any] = {}
        self._errors: Counter[str] = Counter()
        self._failed_at = -math.inf
        self._failure = ""

    @property
    def ready(self) -> bool:
        """True once the log was read."""
        return self._live

    @property
    def states(self) -> dict[str, S]:
        """The present state of each job."""
        return {name: job.state for name, job in self._jobs.items()}

    @property
    def health(self) -> tuple[Health, str]:
        """How well it is, and why in words."""
        if not self._live:
            return "warning", "the log is being read"
        if time.monotonic() - self._failed_at < _FAILING:
            return "warning", f"an input failed, the state stays as it was: {self._failure}"[:_REASON]
        jobs = sum(not job.ended for job in self._jobs.values())
        return "passing", f"{jobs} job{'' if jobs == 1 else 's'} at work"

    async def run(
        self, ended: asyncio.Event, *, tick: float = 0.1, pulses: bool = False, disconnects: bool = False
    ) -> None:
        """Serve until `ended` is set; what is under way then gets a moment to end."""
        await self._bus.serve(self._answers_as, PING, self._answer_ping)
        publishing = asyncio.create_task(self._publications.run(), name="publish")
        starting = asyncio.create_task(self._begin(pulses, disconnects), name="begin")
        ending = asyncio.create_task(ended.wait())
        ticking: asyncio.Task[None] | None = None
        measuring: asyncio.Task[None] | None = None
        try:
            await asyncio.wait({starting, ending}, return_when=asyncio.FIRST_COMPLETED)
            if starting.done():
                starting.result()
                if self._lease is not None:
                    await self._lease.start()
                ticking = asyncio.create_task(self._tick_on(tick), name="tick")
                measuring = asyncio.create_task(self._measure_on(), name="measure")
                self._log.info("ready", jobs=len(self._jobs), seq=self._seq)
            await ending
            starting.cancel()
            self._live = False
            await self._last_words()
        finally:
            if self._lease is not None:
                await self._lease.stop()
            workers = (job.worker for job in self._jobs.values())
            tasks = [task for task in (publishing, ticking, measuring, starting, ending, *workers) if task is not None]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _begin(self, pulses: bool, disconnects: bool) -> None:
        await self._bus.follow(self._on_event)
        self._live = True
        if pulses:
            await self._bus.pulses(lambda job, pulse: self._tell(self._now(job, pulse)))
        if disconnects and not await self._bus.disconnects(self._on_disconnect):
            self._log.warning("the broker tells us no disconnects: that evidence is missing")

    # ------------------------------------------------------------------------------------------------------ inputs

    def _on_event(self, received: Received) -> None:
        self._seq = received.seq
        told = Told(
            job=received.job,
            event=received.event,
            now=time.monotonic(),
            seq=received.seq,
            live=self._live,
            trace=received.trace,
            id=received.id,
            source=received.source,
            wall=received.time,
            at=received.stored,
        )
        self._tell(told)
        job = self._jobs.get(received.job)
        if job is not None:
            job.seq = received.seq
            if isinstance(received.event, JobSubmitted):
                job.ended = 0.0
            elif job.ended or isinstance(received.event, JobFinished):
                job.ended = told.now

    def _on_disconnect(self, client_id: int, name: str) -> None:
        if self._lease is not None:
            self._lease.notice(client_id)
        for job in list(self._jobs):
            self._tell(self._now(job, Disconnected(client_id, name)))

    def _now(self, job: str, what: AnyPulse | Tick | Disconnected) -> Told:
        """An input that is not on the log."""
        now = time.monotonic()
        return Told(job, what, now, at=now + self._bus.ahead)

    async def _tick_on(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            now = time.monotonic()
            for name, job in list(self._jobs.items()):
                if not job.ended or now - job.ended < _TICKS_AFTER_END:
                    self._tell(self._now(name, Tick()))
            due = max(due + seconds, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _measure_on(self) -> None:
        while True:
            await asyncio.sleep(_MEASURE_EVERY)
            with contextlib.suppress(ReknitError):  # away: measured when it is back
                await self._bus.measure()

    def _tell(self, told: Told) -> None:
        job = self._jobs.get(told.job)
        try:
            if job is None:
                job = self._jobs[told.job] = _Job(self._initial(told.job))
            decision = self._decide(job.state, told)
        except Exception as error:  # noqa: BLE001 - one bad job must not end the service of all others
            self._count_error(told, error)
            return
        job.state = decision.state
        if not told.live or not self._live:
            return
        if decision.wake is not None:
            self._wake(told.job, job, decision.wake)
        asked = [self._ask(told, out, decision.reason) for out in decision.out]
        asked += [self._ask_action(told.job, job, action) for action in decision.do]
        if decision.reason and (any(asked) or decision.reason != job.said):
            job.said = decision.reason
            self._log.info(decision.reason, job=told.job)

    def _wake(self, name: str, job: _Job[S], seconds: float) -> None:
        """Set the job's alarm, unless an earlier one is set."""
        loop = asyncio.get_running_loop()
        if job.alarm is not None:
            if job.alarm.when() <= loop.time() + seconds:
                return
            job.alarm.cancel()
        job.alarm = loop.call_later(seconds, self._on_alarm, name, job)

    def _on_alarm(self, name: str, job: _Job[S]) -> None:
        job.alarm = None
        if self._live:
            self._tell(self._now(name, Tick()))

    def _count_error(self, told: Told, error: Exception) -> None:
        what = f"{told.job}: {type(error).__name__}: {error}"
        self._failed_at, self._failure = time.monotonic(), what
        self._errors[what] += 1
        count = self._errors[what]
        if count == 1 or count % 1000 == 0:
            self._log.error(
                "input failed, the state stays as it was",
                job=told.job,
                input=type(told.event).__name__,
                seq=told.seq,
                count=count,
                exc_info=error,
            )

    # ----------------------------------------------------------------------------------------------------- outputs

    @property
    def acts(self) -> bool:
        """True if what is decided here is done here; False while another process of this service acts."""
        return self._lease is None or self._lease.held

    def _keep(self, key: Hashable, call: Callable[[], object]) -> None:
        self._undone.keep(key, call)
        if self._lease is not None:
            self._lease.hurry()

    def _act_now(self) -> None:
        """The lease is ours: do what the one before us may have left undone; what it did do is refused as done."""
        if self._live:
            self._undone.release()
            for name in list(self._jobs):
                self._tell(self._now(name, Tick()))

    def _ask(self, told: Told, out: Out, reason: str) -> bool:
        if not self.acts:
            self._keep((told.job, kind_of(out.event), out.id), lambda: self._ask(told, out, reason))
            return False
        return self._publications.ask(told.job, out, out.trace or told.trace, reason)

    def _ask_action(self, name: str, job: _Job[S], action: Any) -> bool:
        if self._act is None or action in job.pending:
            return False
        if not self.acts:
            self._keep((name, action), lambda: self._ask_action(name, job, action))
            return False
        job.pending.add(action)
        job.actions.put_nowait(action)
        if job.worker is None:
            job.worker = asyncio.create_task(self._act_on(name, job), name=f"act-{name}")
        return True

    async def _act_on(self, name: str, job: _Job[S]) -> None:
        assert self._act is not None
        while True:
            action = await job.actions.get()
            try:
                await self._act(self._bus, name, action)
            except Exception as error:  # noqa: BLE001 - it may be asked for again; other actions go on
                self._log.error("action failed", job=name, action=type(action).__name__, exc_info=error)
            finally:
                job.pending.discard(action)
                job.actions.task_done()

    async def _last_words(self) -> None:
        under_way = [self._publications.all_done(), *(job.actions.join() for job in self._jobs.values())]
        try:
            async with asyncio.timeout(_LAST_WORDS):
                await asyncio.gather(*under_way)
                await self._bus.flush(_LAST_WORDS)
        except (TimeoutError, ReknitError):
            self._log.warning("ended before all was published", left=self._publications.waiting)

    async def _answer_ping(self, _question: bytes) -> bytes:
        return json.dumps(
            {
                "service": self._name,
                "pid": os.getpid(),
                "ready": self._live,
                "acts": self.acts,
                "seq": self._seq,
                "jobs": sorted(self._jobs),
                "errors": sum(self._errors.values()),
                **self.about,
            }
        ).encode()
