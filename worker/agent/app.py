"""The agent's only asyncio: it turns what happens into inputs of `decide`, and actions into processes and events."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import signal
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from typing import Any

from reknit.core.address import split
from reknit.core.bus import Bus, Received
from reknit.core.context import AgentContext
from reknit.core.discovery.names import resolve
from reknit.core.events import AgentJoined, AnyPulse, NodePulse, WorkerPulse, WorkerRegistered
from reknit.core.registry_entry import Entry
from reknit.gossip.happening import Happening

from . import lifeline, namesake, procfs
from .actions import Action, AskToLeave, End, Fork, Kill, Post, Say, Watch
from .contact import Contact
from .deathwatch import Deathwatch
from .decide import decide
from .display import Display
from .forkserver import Forkserver, Hand
from .gossiping import Gossiping
from .incarnation import next_incarnation
from .inputs import Began, Dying, Exited, Forked, ForkFailed, Heard, Input, Signalled, Ticked
from .lifeline import Lifeline
from .order import order_of
from .output import Log, Output
from .remains import Remains
from .roster import entries
from .running import Running
from .state import fresh
from .telling import Telling
from .tracebacks import Seen

_VERSION = importlib.metadata.version("reknit")
_TICK = 0.25
_SEEDS_EVERY = 30.0
_OBSERVE_EVERY = 4
"""Ticks between two looks at the whole process table."""
_FLUSH_SECONDS = 5.0
_SLOW_LOADING = 30.0
_IN_WORDS = {"gone": "is gone", "joined": "is there", "refuted": "lives after all"}


class Agent:
    """The supervisor of a node."""

    def __init__(self, context: AgentContext, forkserver: Forkserver, display: Display, threads: int) -> None:
        self._context = context
        self._forkserver = forkserver
        self._display = display
        self._seen = Seen()
        self._threads = threads
        self._bus: Bus | None = None
        self._running: dict[str, Running] = {}
        self._felt: set[str] = set()
        self._remains = Remains()
        self._watching = True
        self._telling = Telling()
        self._letters: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        """Worker -> address of its newest registration."""
        self._since = time.time()
        self._gossip = Gossiping.of(context, self._on_gossip)
        self._tasks: set[asyncio.Task[None]] = set()
        self._forking = asyncio.Lock()
        self._ended: asyncio.Future[End] = asyncio.get_running_loop().create_future()
        self._state = fresh(
            context.node,
            context.job,
            context.run,
            context.nproc,
            grace=context.grace,
            evict_grace=context.evict_grace,
            host=context.host,
            pid=os.getpid(),
        )

    async def run(self) -> int:
        """Supervise until the node's work is done; return the exit code.

        Raises:
            ControlPlaneUnreachable: the broker could not be reached at the start.
            UsageError: another agent of the node's name lives.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        beginning = asyncio.create_task(self._begin())
        beating: asyncio.Task[None] | None = None
        try:
            # a signal may end it before anything has begun
            first: set[asyncio.Future[Any]] = {beginning, self._ended}
            await asyncio.wait(first, return_when=asyncio.FIRST_COMPLETED)
            if beginning.done():
                beating = asyncio.create_task(self._tick(beginning.result()))
            end = await self._ended
            await self._say_the_rest()
        finally:
            if self._gossip is not None:
                self._gossip.close()
            beginning.cancel()
            if beating is not None:
                beating.cancel()
            await self._clean_up()
            if self._bus is not None:
                await self._bus.close()
        if end.last_words:
            self._display.say(self._context.node, end.last_words)
        return end.code

    async def _begin(self) -> Bus:
        """Connect, announce the node, and read the log up to there and beyond."""
        context = self._context
        bus = await Bus.connect(context.endpoint, source=f"agent/{context.node}")
        self._bus = bus
        await namesake.refuse_if_taken(bus, context.job, context.node, self._say)
        await namesake.answer_for(bus, context.job, context.node, context.host, self._is_leaving)
        if trouble := lifeline.why_not():
            self._no_watch(trouble)
        if self._gossip is not None and (trouble := await self._gossip.open(context.host, context.gossip_port)):
            self._say(trouble)
        joined = AgentJoined(
            node=context.node,
            run=context.run,
            host=context.host,
            pid=os.getpid(),
            nproc=context.nproc,
            client_id=bus.client_id,
            labels=context.labels,
            gossip=self._gossip.address if self._gossip is not None else "",
        )
        seq = await bus.publish(context.job, joined)
        self._state = replace(self._state, joined=seq)
        if self._gossip is not None:
            self._gossip.begin(seq)
            if context.seeds:
                self._spawn(self._meet_seeds(self._gossip))
        if self._forkserver.will is not None:
            self._forkserver.will.arrived(seq)
        await bus.follow(self._on_event, job=context.job, areas=("job", "node", "worker", "world"))
        bus.registry.register(f"agent.{context.job}.{context.node}", self._entries)
        self._feed(Began(time.monotonic()))
        return bus

    def _entries(self) -> tuple[Entry, ...]:
        return entries(
            self._state,
            self._letters,
            self._addresses,
            address=self._context.host,
            version=_VERSION,
            since=self._since,
        )

    async def _meet_seeds(self, gossip: Gossiping) -> None:
        """Look seeds up again and again: a name gets more addresses as more nodes come up."""
        said: tuple[str, ...] = ()
        while True:
            addresses, troubles = await resolve(self._context.seeds)
            gossip.meet(addresses)
            for trouble in troubles:
                if trouble not in said:
                    self._say(f"a seed of the gossip is left out: {trouble}")
            said = troubles
            await asyncio.sleep(_SEEDS_EVERY)

    def _is_leaving(self) -> bool:
        return self._state.mode not in ("starting", "running")

    async def _say_the_rest(self) -> None:
        if self._bus is not None and not await self._bus.flush(_FLUSH_SECONDS):
            self._say(f"the broker is away: {self._bus.unsent} events of this node were not told")

    # ------------------------------------------------------------------------------------------------------ inputs

    def _feed(self, told: Input) -> None:
        decision = decide(self._state, told)
        self._state = decision.state
        for action in decision.do:
            self._do(action)

    def _on_event(self, received: Received) -> None:
        event = received.event
        if isinstance(event, WorkerRegistered) and event.node == self._context.node:
            self._addresses[event.worker] = event.address
        if (
            self._gossip is not None
            and isinstance(event, AgentJoined)
            and event.run == self._context.run
            and event.gossip
        ):
            self._gossip.meet([split(event.gossip)])
        ahead = self._bus.ahead if self._bus is not None else 0.0
        self._feed(Heard(received.event, received.seq, time.monotonic(), ahead))

    async def _feel(self, worker: str) -> None:
        """Hear a worker's heartbeats, and nobody else's: else each node would hear all of a job's."""
        if worker not in self._felt and self._bus is not None:
            self._felt.add(worker)
            await self._bus.pulses(self._on_pulse, job=self._context.job, member=worker)

    def _on_pulse(self, _job: str, pulse: AnyPulse) -> None:
        if isinstance(pulse, WorkerPulse) and (running := self._running.get(pulse.worker)) is not None:
            running.step = max(running.step, pulse.step)

    def _on_signal(self, number: int) -> None:
        if self._state.joined == 0:
            # nobody knows of us yet
            if not self._ended.done():
                self._ended.set_result(End(128 + number))
            return
        self._feed(Signalled(number, time.monotonic()))

    async def _tick(self, bus: Bus) -> None:
        count, contact = 0, Contact()
        while True:
            await asyncio.sleep(_TICK)
            count += 1
            looks = {w: look for w, r in self._running.items() if (look := procfs.look(r.hand.pid)) is not None}
            self._feed(Ticked(time.monotonic(), looks))
            if count % _OBSERVE_EVERY == 0:
                self._remains.observe(self._pids(), self._forkserver.guard)
            self._letters = {worker: look.letter for worker, look in looks.items()}
            if told := contact.look(bus.connected, time.monotonic()):
                self._say(told)
            await self._beat(bus)

    async def _beat(self, bus: Bus) -> None:
        pulse = NodePulse(
            node=self._context.node,
            workers=self._letters,
            load=os.getloadavg()[0],
            memory_free=procfs.memory_available(),
            **(self._gossip.report() if self._gossip is not None else {}),
        )
        await bus.beat(self._context.job, pulse)

    def _on_gossip(self, happening: Happening) -> None:
        if self._bus is None:
            return
        if happening.what == "report":
            self._spawn(self._beat(self._bus))  # out of turn: every heartbeat's delay would be added to the silence
        elif happening.what == "superseded":
            self._say(f"a later agent at {happening.detail} has the name {happening.name}")
        elif not self._bus.connected and (said := _IN_WORDS.get(happening.what)):
            # what is known while nobody can decide anything: the log tells it at other times
            told = f" ({happening.detail})" if happening.detail else ""
            self._say(f"the broker is away; the neighbours say: {happening.name} {said}{told}")

    def _on_exit(self, worker: str, running: Running) -> None:
        code = self._forkserver.exit_code(running.hand)
        if code is None or running.ended:
            return
        running.ended = True
        running.watch.end()
        now = time.monotonic()
        loop = asyncio.get_running_loop()
        loop.remove_reader(running.hand.sentinel)
        for stream in (running.out, running.err):
            loop.remove_reader(stream.fd)
            # all it wrote is in the pipe already; a child of its may still hold the other end, so there is no EOF
            stream.finish()
        killed = code == -signal.SIGKILL
        self._running.pop(worker, None)
        self._feed(
            Exited(
                worker=worker,
                pid=running.hand.pid,
                code=code,
                now=now,
                out_of_memory=killed and procfs.oom_kills() > running.oom_kills,
                machine_short=killed and procfs.machine_oom_kills() > running.machine_oom_kills,
                stderr_tail=running.err.tail,
                step=running.step,
                log=running.log.path,
            )
        )
        # after the notice, and before its successor is forked, which is a task of its own
        self._remains.begin(worker, running.hand.pid, self._pids(), self._forkserver.guard)
        self._spawn(self._bury(worker, running))

    # ----------------------------------------------------------------------------------------------------- actions

    def _do(self, action: Action) -> None:
        match action:
            case Post():
                self._post(action)
            case Fork():
                self._spawn(self._fork(action))
            case AskToLeave(worker=worker):
                if (running := self._running.get(worker)) is not None:
                    running.signal(signal.SIGTERM)
            case Kill(worker=worker):
                if (running := self._running.get(worker)) is not None:
                    running.kill()
            case Watch(worker=worker):
                self._watch(worker)
            case Say(text=text):
                self._say(text)
            case End():
                if not self._ended.done():
                    self._ended.set_result(action)

    def _post(self, action: Post) -> None:
        assert self._bus is not None
        self._telling.post(self._bus, self._context.job, action)

    def _watch(self, worker: str) -> None:
        running = self._running.get(worker)
        if running is None:
            return
        loop = asyncio.get_running_loop()

        def tell() -> None:
            with suppress(RuntimeError):  # the loop is closed: this agent ends too
                loop.call_soon_threadsafe(self._on_dying, worker, running)

        if not running.watch.begin(tell):
            self._no_watch(f"{worker} holds no lifeline")

    def _on_dying(self, worker: str, running: Running) -> None:
        if not running.ended:
            rest = {w: r.hand.pid for w, r in self._running.items() if w != worker and not r.ended}
            others = tuple(w for w, pid in rest.items() if procfs.is_doomed(pid))
            self._feed(Dying(worker, running.hand.pid, time.monotonic(), others))

    def _no_watch(self, why: str) -> None:
        if self._watching:
            self._watching = False
            self._say(f"deaths of workers are noticed when they are reaped, not before: {why}")

    async def _fork(self, action: Fork) -> None:
        worker = action.worker
        await self._remains.gone(worker)
        async with self._forking:
            if self._forkserver.lost:
                await asyncio.to_thread(self._forkserver.ended, 10.0)
                self._forkserver.recover()
            incarnation = next_incarnation(time.time_ns() // 1_000_000, action.attempt, action.last_incarnation)
            oom, machine_oom = procfs.oom_kills(), procfs.machine_oom_kills()
            waiting = asyncio.get_running_loop().call_later(_SLOW_LOADING, self._say, "still loading torch …")
            line = self._lifeline()
            order = order_of(self._context, action, incarnation, threads=self._threads, line=line)
            try:
                hand = await asyncio.to_thread(self._forkserver.fork, order)
            except (OSError, EOFError) as error:
                self._forkserver.lost = isinstance(error, EOFError | ConnectionError)
                if line is not None:
                    line.close()
                self._feed(ForkFailed(worker, f"{type(error).__name__}: {error}", time.monotonic()))
                return
            finally:
                waiting.cancel()
                if line is not None:
                    line.sent()
        running = self._adopt(worker, hand, Deathwatch(line, hand.pid), incarnation)
        running.oom_kills, running.machine_oom_kills = oom, machine_oom
        self._feed(Forked(worker, incarnation, hand.pid, time.monotonic()))

    def _lifeline(self) -> Lifeline | None:
        if self._watching:
            try:
                return Lifeline.make()
            except OSError as error:
                self._no_watch(str(error))
        return None

    def _adopt(self, worker: str, hand: Hand, watch: Deathwatch, incarnation: int) -> Running:
        running = Running.adopt(
            worker,
            hand,
            watch,
            incarnation,
            log_dir=self._context.log_dir,
            display=self._display,
            seen=self._seen,
        )
        self._running[worker] = running
        self._spawn(self._feel(worker))
        loop = asyncio.get_running_loop()
        for stream in (running.out, running.err):
            loop.add_reader(stream.fd, self._on_output, stream, running.log)
        loop.add_reader(hand.sentinel, self._on_exit, worker, running)
        return running

    def _on_output(self, stream: Output, file: Log) -> None:
        stream.read()
        if trouble := file.trouble():
            self._say(trouble)
        if stream.ended:
            asyncio.get_running_loop().remove_reader(stream.fd)

    def _say(self, text: str) -> None:
        self._display.say(self._context.node, text)

    # --------------------------------------------------------------------------------------------------------- end

    def _pids(self) -> dict[str, int]:
        return {worker: running.hand.pid for worker, running in self._running.items()}

    async def _bury(self, worker: str, running: Running) -> None:
        """Wait until what the worker left behind is gone, then take the last of its output."""
        left = await self._remains.gone(worker)
        if left:
            self._say(
                f"{worker}: PID {', '.join(map(str, sorted(left)))} not reaped: left by it, SIGKILL did not end it"
            )
        running.close()

    async def _clean_up(self) -> None:
        for running in list(self._running.values()):
            running.kill()
        for task in list(self._tasks):
            task.cancel()
        if not await asyncio.to_thread(self._forkserver.stop, 2.0):
            self._say(f"PID {self._forkserver.guard} not reaped: it still waits for processes of this node")
        for running in self._running.values():
            running.finish()

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def supervise(context: AgentContext, forkserver: Forkserver, display: Display, threads: int) -> int:
    """Run an agent until its node's work is done; return its exit code.

    Raises:
        ControlPlaneUnreachable: the broker could not be reached at the start.
        UsageError: another agent of the node's name lives.
    """

    async def run() -> int:
        return await Agent(context, forkserver, display, threads).run()

    return asyncio.run(run())
