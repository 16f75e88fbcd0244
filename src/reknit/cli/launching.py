"""One run on this node, from the submission to the last process ended.

    broker -> bus -> submitted or joined -> services -> agent -> … -> agent ended -> job over -> all ended

First Ctrl-C or SIGTERM: the job stops politely, or only this node drains if others take part. Second one: SIGKILL to
all that was started here. SIGHUP is ignored: a closed terminal ends no training. Whatever happens, nothing is left
running: each child dies with this process by the kernel's doing, orphans of children become ours and are swept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

from reknit.core import launch
from reknit.core.bus import Bus, Received
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, RunFailed, Unauthorized, UsageError
from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    AnyPulse,
    CheckpointFailed,
    JobFinished,
    JobStopAsked,
    StepsCommitted,
    WorldChanged,
)
from reknit.core.home import Home, JobFolder, Mark, NodeRun
from reknit.core.ledger import verify
from reknit.core.proof import Proof
from reknit.core.settings import usable_cores
from reknit.core.status import Status
from reknit.core.status_fold import hear, see

from . import agent
from .address import available_memory, route_to
from .agent import AGENT
from .awaited import Awaited
from .crowd import crowded
from .entry import enter, workers_of
from .host_reader import HostReader
from .last_words import last_words
from .look import answering, run_service
from .order import Order, PlaneAt
from .output import Colour, Screen
from .plane import Plane
from .progress import line_of, live_line, mark, missing, underway
from .root_cause import Failures
from .summary import Ending, lines
from .transport import check_transport

LAUNCHER = "launcher"
_LOOK = 0.2
"""Seconds between two looks at how things are."""
_PLAIN = 2.0
"""Seconds between two progress lines where there is no terminal."""
_HEAR_THE_END = 5.0
"""Seconds to wait for `job.finished` after the agent has ended."""
_LINGER = 10.0
"""Seconds that the launcher that keeps the broker waits for other nodes to end after the job is over."""
_SAVED = 3.0
"""Seconds to wait, once all have ended, for a checkpoint of which files are written."""
_MARGIN = 10.0
"""Seconds beyond its own grace that an agent may take to end."""
_HEARS_ALL = 64
"""Workers of a job at most, up to which each launcher hears all of them."""


class Launch:
    """One run of this process's own."""

    def __init__(self, order: Order, home: Home, folder: JobFolder, plane_at: PlaneAt, screen: Screen) -> None:
        self._order = order
        self._home = home
        self._folder = folder
        self._at = plane_at
        self._screen = screen
        self._node = order.node
        self._spec = order.spec
        self._keeper = launch.Keeper(self._noticed, self._said_by_agent)
        self._plane = Plane(plane_at.folder, folder, self._keeper, self._say, standby=plane_at.standby)
        hosts = order.hosts
        self._hosts = HostReader(hosts, every=order.hosts_every, say=self._say) if hosts is not None else None
        self._bus: Bus | None = None
        self._status = Status(order.job)
        self._failures = Failures()
        self._heartbeats_of: set[str] = set()
        self._farewell: AgentLeft | None = None
        self._live = False
        self._has_joined = False
        self._moved = False
        """A step was committed since we are here."""
        self._submitted = False
        self._over = asyncio.Event()
        self._signals: list[int] = []
        self._work: asyncio.Task[str] | None = None
        self._beside: list[asyncio.Task[None]] = []
        self._claims = contextlib.ExitStack()
        self._fatal = ""
        self._refused = 0
        """Exit code with which the agent said that it will never be let in."""
        self._agent_code = 0
        self._unreached = launch.Unreached()
        self._page = ""
        self._began = time.monotonic()
        self._since = time.time()
        self._plain_at = 0.0
        self._plain: tuple[object, ...] = ()
        self._awaited = Awaited()

    # --------------------------------------------------------------------------------------------------- the story

    async def run(self) -> int:
        """Run to the end; returns the exit code.

        Raises:
            ReknitError: it could not begin; nothing is left running.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled, number)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        launch.adopt_orphans()
        self._work = asyncio.create_task(self._whole())
        try:
            outcome = await self._work
        except asyncio.CancelledError:
            outcome = "stopped"
        finally:
            await self._end_all()
        return self._code(outcome)

    @property
    def taking_part(self) -> bool:
        """True once this run has begun the job or joined it."""
        return self._submitted

    async def _whole(self) -> str:
        if self._hosts is not None:
            await self._hosts.check()
        await check_transport(self._order.spec.transport, self._node)
        await self._reach_broker()
        if not self._plane.ours:
            self._folder.keep_endpoint(self._plane.endpoint)
        bus = self._bus = await Bus.connect(self._plane.endpoint, source=f"{LAUNCHER}/{self._node}", timeout=5.0)
        entry = await enter(bus, self._order, self._folder, self._claims, self._screen)
        self._spec, self._node = entry.spec, entry.node
        if self._spec.transport != self._order.spec.transport:  # a run that is joined has one already
            await check_transport(self._spec.transport, self._node)
        self._submitted = True
        workers = workers_of(self._spec, self._order.nproc)
        if told := crowded(workers, usable_cores(), available_memory()):
            self._say(told, True)
        self._note()
        await bus.serve(run_service(self._order.job), self._node, self._answer)
        await bus.follow(self._heard, job=self._order.job)
        self._live = True
        await self._feel(bus)
        await self._plane.serve(bus)
        self._beside.append(asyncio.create_task(self._plane.watch(bus, self._note)))
        if self._hosts is not None:
            self._beside.append(asyncio.create_task(self._tell_hosts(bus, self._hosts)))
        if not self._signals:
            await self._keeper.keep(self._agent(), self._agent_is_done)
            self._note()
            await self._until_agent_ends(bus)
            if self._refused == Unauthorized.exit_code:
                raise Unauthorized(
                    f"the broker {self._plane.endpoint.url} refuses the credentials of node {self._node!r}",
                    hint="check --nats: user and password, or the endpoint file of the job",
                )
            if self._refused:
                # the job is others': nothing is said to the log
                raise UsageError(
                    f"the agent of node {self._node!r} was refused by job {self._order.job!r}",
                    hint="give this node another name with --node",
                )
            if self._unreached.gone:
                # the job is others' and perhaps over: nothing is said to the log
                raise ControlPlaneUnreachable(
                    f"the broker {self._plane.endpoint.url} is gone: this node never joined job {self._order.job}",
                    hint="the job has probably just ended; start it again if not",
                )
        outcome, reason = await self._how_it_ended(bus)
        await self._close(bus, outcome, reason)
        return outcome

    async def _reach_broker(self) -> None:
        at = self._at
        if at.endpoint is not None:
            self._plane.use(at.endpoint)
        else:
            await self._plane.own_or_join("run", host=at.host, port=at.port)

    async def _answer(self, _question: bytes) -> bytes:
        return self._spec.run.encode()

    @property
    def _address(self) -> str:
        """This node's address, as others reach it."""
        return self._order.host or route_to(self._plane.endpoint.url)

    async def _tell_hosts(self, bus: Bus, hosts: HostReader) -> None:
        await hosts.tell(
            bus,
            job=self._order.job,
            run=self._spec.run,
            node=self._node,
            own=self._address,
            known=lambda: self._status.hosts,
        )

    # ------------------------------------------------------------------------------------------------------- agent

    def _agent(self) -> launch.Program:
        return agent.program(
            self._order,
            self._spec,
            node=self._node,
            endpoint=self._plane.endpoint,
            host=self._address,
            folder=self._folder,
        )

    async def _agent_is_done(self, code: int) -> bool:
        """True if this end of the agent's process is its proper one: then it is not started again."""
        if code == 0 or self._signals or self._fatal:
            return True
        if code in (UsageError.exit_code, Unauthorized.exit_code):
            self._refused = code  # it has said why: another agent has the node's name, or its credentials are wrong
            return True
        if not self._plane.ours and not self._has_joined and self._unreached.ended(code):
            return True
        deadline = time.monotonic() + 1.0
        while code > 0 and time.monotonic() < deadline:
            if self._farewell is not None or self._status.finished is not None:
                return True  # it has said its farewell, or the job is over
            await asyncio.sleep(0.02)
        return False

    async def _until_agent_ends(self, bus: Bus) -> None:
        end = asyncio.create_task(self._keeper.end(AGENT))
        asked_at = 0.0
        while not end.done():
            await asyncio.wait({end}, timeout=_LOOK)
            self._show()
            await self._feel(bus)
            if self._signals and not asked_at:
                asked_at = time.monotonic()
                await self._ask_to_stop(bus)
            elif asked_at and time.monotonic() - asked_at > 2 * self._order.grace + _MARGIN:
                self._say("the agent does not end: killing all that was started here", True)
                self._keeper.kill()
            if self._fatal and not self._keeper.stopping():
                self._keeper.signal(AGENT, signal.SIGTERM)
                asked_at = asked_at or time.monotonic()

    async def _ask_to_stop(self, bus: Bus) -> None:
        name = signal.Signals(self._signals[0]).name
        others = await self._others(bus)
        within = f"up to {self._order.grace:g} s; once more: at once"
        if others:
            self._say(f"{name}: this node drains, {', '.join(sorted(others))} go on ({within})", False)
            self._keeper.signal(AGENT, signal.SIGTERM)
            return
        self._say(f"{name}: stopping job {self._order.job} ({within})", False)
        try:
            stop = JobStopAsked(reason=f"{name} at the launcher of {self._node}")
            await bus.publish(self._order.job, stop, deadline=2.0)
        except ControlPlaneUnreachable:
            self._keeper.signal(AGENT, signal.SIGTERM)

    async def _others(self, bus: Bus) -> set[str]:
        nodes = [n.node for n in self._status.nodes.values() if n.up and n.node != self._node]
        return await answering(bus, self._order.job, nodes) if nodes else set()

    # --------------------------------------------------------------------------------------------------------- end

    async def _how_it_ended(self, bus: Bus) -> tuple[str, str]:
        """The outcome and its reason; says it to the log if nobody else can."""
        code = await self._keeper.end(AGENT) if self._keeper.knows(AGENT) else 0
        others = await self._others(bus)
        if self._keeper.knows(AGENT) and not self._fatal:
            # scripts that never joined leave nobody a reason to say that the job is over
            alone = code == 0 and self._status.terms is None and not self._signals
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._over.wait(), 0.3 if alone else 1.0 if others else _HEAR_THE_END)
        finished = self._status.finished
        self._agent_code = code
        if finished is not None:
            if code == 1:
                await self._hear_farewell()
            return finished.outcome, finished.reason
        if others:
            return ("drained" if code == 0 else "failed"), f"{', '.join(sorted(others))} go on with the job"
        said = self._last_words(code)
        await self._finish(bus, said, 3.0)
        return said.outcome, said.reason

    async def _hear_farewell(self) -> None:
        """The agent's farewell follows all that it and its workers said: then the failure is known."""
        deadline = time.monotonic() + _HEAR_THE_END
        while self._farewell is None and time.monotonic() < deadline:  # noqa: ASYNC110  (told on the bus's side)
            await asyncio.sleep(0.02)

    async def _finish(self, bus: Bus, said: JobFinished, deadline: float) -> None:
        with contextlib.suppress(ReknitError):
            await bus.publish(self._order.job, said, id=f"finished/{self._spec.run}", deadline=deadline)

    def _last_words(self, code: int) -> JobFinished:
        return last_words(
            self._status,
            self._failures,
            run=self._spec.run,
            node=self._node,
            code=code,
            signalled=self._signals[0] if self._signals else 0,
            fatal=self._fatal,
            farewell=self._farewell,
        )

    async def _close(self, bus: Bus, outcome: str, reason: str) -> None:
        if self._plane.ours and outcome != "drained":
            await self._linger(bus)
        if outcome in {"completed", "stopped"}:
            await self._until_saved()
        proof = await self._proof(bus) if outcome != "drained" else None
        await bus.flush(2.0)
        self._screen.status("")
        ending = Ending(
            outcome, reason, time.monotonic() - self._began, self._status, self._failures, proof, self._agent_code
        )
        for text, colour in lines(ending):
            self._screen.note(text, colour)

    async def _linger(self, bus: Bus) -> None:
        """The broker is ours: other nodes that are just ending still need it."""
        deadline = time.monotonic() + _LINGER
        while time.monotonic() < deadline and await self._others(bus):  # noqa: ASYNC110  (nothing tells us)
            await asyncio.sleep(_LOOK)

    async def _until_saved(self) -> None:
        """The last checkpoint's files are written: it is soon committed, or known to have failed."""
        deadline = time.monotonic() + _SAVED
        while self._status.saving.begun and time.monotonic() < deadline:  # noqa: ASYNC110  (told on the bus's side)
            await asyncio.sleep(0.02)

    async def _proof(self, bus: Bus) -> Proof | None:
        try:
            async with asyncio.timeout(30.0):
                log = await bus.backlog(job=self._order.job)
                return await asyncio.to_thread(verify, log)
        except (ReknitError, TimeoutError):
            return None

    async def _end_all(self) -> None:
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        bus = self._bus
        if bus is not None:
            if len(self._signals) > 1 and self._submitted and not self._over.is_set() and not await self._others(bus):
                await self._finish(bus, self._last_words(-signal.SIGKILL), 1.0)
            with contextlib.suppress(ReknitError):
                await bus.close()
        await self._keeper.stop(0.0 if len(self._signals) > 1 else 5.0)
        self._plane.stop()
        self._claims.close()
        if self._submitted:
            self._folder.note(None, self._node)
        for pid in launch.sweep():
            self._say(f"PID {pid} could not be ended: it hangs in the kernel", True)

    def _code(self, outcome: str) -> int:
        if outcome == "completed":
            # the script's own end counts too: a final save or evaluation that raised
            return RunFailed.exit_code if self._agent_code == 1 else 0
        if self._signals:
            return 128 + self._signals[0]
        codes = {"failed": RunFailed.exit_code, "stopped": 128 + signal.SIGTERM, "drained": 0}
        return codes[outcome]

    # ---------------------------------------------------------------------------------------------------- callbacks

    def _signalled(self, number: int) -> None:
        self._signals.append(number)
        if len(self._signals) > 1:
            self._say("at once: killing all that was started here", True)
            self._keeper.kill()
        if not self._submitted or len(self._signals) > 1:
            assert self._work is not None
            self._work.cancel()

    def _noticed(self, notice: launch.Notice) -> None:
        if notice.what == "died":
            self._say(str(notice), True)
        elif notice.what == "given up":
            self._say(str(notice), True)
            if notice.name in {AGENT, "membership"}:
                self._fatal = str(notice)
        if notice.what == "started" and self._live:
            self._note()

    def _said_by_agent(self, _name: str, error: bool, said: list[str]) -> None:
        for text in said:
            (self._screen.err if error else self._screen.out)(text)

    def _heard(self, received: Received) -> None:
        event, before = received.event, self._status
        self._status = see(self._status, event, time.monotonic(), received.time, received.seq)
        self._failures.tell(event)
        if self._status.finished is not None and self._status.run == self._spec.run:
            self._over.set()
        if not self._live:
            return  # what was before us
        self._moved = self._moved or isinstance(event, StepsCommitted)
        if isinstance(event, AgentJoined) and event.node == self._node:
            self._has_joined = True
        if isinstance(event, AgentLeft) and event.node == self._node and not event.arrival:  # its own word
            self._farewell = event
        if isinstance(event, CheckpointFailed) and self._status.saving.failures == before.saving.failures:
            return  # one of its other writers has said so, or nothing has failed
        awaiting = event.awaiting if isinstance(event, WorldChanged) else ""
        awaited = self._awaited.worth(awaiting, time.monotonic())
        line = line_of(event, slots=self._status.slots, awaited=awaited, committed=before.committed)
        if line is not None:
            self._screen.note(*line)

    async def _feel(self, bus: Bus) -> None:
        """Hear heartbeats: in a small job all, in a large one this node's, lest each node hear thousands a second."""
        small = self._spec.max_nodes * self._spec.nproc_per_node <= _HEARS_ALL
        own = {worker.worker for worker in self._status.workers.values() if worker.node == self._node}
        for member in ({"*"} if small else own) - self._heartbeats_of:
            self._heartbeats_of.add(member)
            await bus.pulses(self._felt, job=self._order.job, member=member)

    def _felt(self, _job: str, pulse: AnyPulse) -> None:
        self._status = hear(self._status, pulse, time.monotonic())

    def _say(self, text: str, warning: bool) -> None:
        colour: Colour = "yellow" if warning else ""
        self._screen.note(text, colour)

    def _show(self) -> None:
        page = self._plane.page() if not self._page else ""
        if page:
            self._page = page
            self._screen.note(f"page: {page}")
        if self._status.finished is not None:
            self._screen.status("")
            return
        moves = self._moved or underway(self._status)
        text = live_line(self._status, moves=moves)
        self._screen.status(text)
        now = time.monotonic()
        if self._screen.live or now - self._plain_at < _PLAIN:
            return
        awaiting = missing(self._status)
        seen = mark(self._status, moves=moves)
        if self._awaited.worth(awaiting, now) if awaiting else seen != self._plain:
            self._plain, self._plain_at = seen, now
            self._screen.note(text)

    def _note(self) -> None:
        """Enter what runs here into run.json."""
        marks = (*self._plane.marks, *self._keeper.marks)
        run = NodeRun(
            node=self._node,
            run=self._spec.run,
            launcher=Mark.of(os.getpid(), LAUNCHER),
            children=marks,
            script=self._order.target,
            since=self._since,
        )
        self._folder.note(run, self._node, self._spec.checkpoint_dir)
