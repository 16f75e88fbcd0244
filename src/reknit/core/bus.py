"""The bus: typed events and heartbeats of jobs over one NATS connection.

Used like this: `bus = await Bus.connect(endpoint, source="w1")`; `await bus.publish(job, event)` stores an event and
returns its sequence; `bus.post(job, event)` does it later, in order, whatever happens to the broker meanwhile;
`await bus.follow(callback, job=job)` hears every event once, in order, the old ones first.

How it holds together is told in docs/architecture.md, "The bus"; its parts: `connection`, `journal` (the stored
stream), `envelope` (events in stored messages), `follow` (hearing), `outbox` (posting).
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence

from nats.aio.msg import Msg

from reknit.core import log, wire
from reknit.core.answers import Answers, ask_once, request
from reknit.core.connection import Connection, NotAnswered
from reknit.core.context import Endpoint
from reknit.core.envelope import Received, opened, sealed
from reknit.core.errors import ReknitError, StaleWorld, UsageError, WireError
from reknit.core.events import AREAS, AnyPulse, Event, NodePulse, Pulse, WorkerPulse, WorldChanged
from reknit.core.follow import Follow, subjects
from reknit.core.journal import Journal, State
from reknit.core.lease import Lease
from reknit.core.micro import Micro
from reknit.core.news import News
from reknit.core.outbox import Outbox
from reknit.core.registry import Registry
from reknit.core.stored import Stored
from reknit.core.subjects import ROOT, heartbeat_subject, job_and_area, valid_name

__all__ = ["Bus", "Received"]

_log = log.get("bus")


class Bus:
    """Events and heartbeats over one connection. Not thread-safe: everything on the loop that connected it.

    Attributes:
        source: who we are, in every event of ours.
        unreadable: messages that did not decode, by subject; each is skipped.
        registry: who is there and how well.
        micro: answers to `$SRV.PING` and the like.
    """

    def __init__(self, connection: Connection, endpoint: Endpoint, source: str) -> None:
        self.source = source
        self.unreadable: Counter[str] = Counter()
        self._connection = connection
        self._endpoint = endpoint
        self._journal = Journal(connection, replicas=endpoint.replicas)
        self._outbox = Outbox(self._journal)
        self._follows: set[Follow] = set()
        self._news = News(connection)
        self._answers = Answers(connection)
        self.registry = Registry(connection, endpoint.replicas)
        self.micro = Micro(connection, self._answers)
        self._checking: asyncio.Task[None] | None = None
        self._state: State | None = None
        connection.on_back.append(self._came_back)

    @classmethod
    async def connect(cls, endpoint: Endpoint, *, source: str, timeout: float = 10.0) -> Bus:
        """Connect, and make the event stream if nobody has yet.

        Raises:
            ControlPlaneUnreachable: no broker answers within `timeout` seconds; the text names the URL.
            Unauthorized: it refused the credentials (at once).
        """
        deadline = time.monotonic() + timeout
        connection = await Connection.open(endpoint.url, endpoint.user, endpoint.password, name=source, timeout=timeout)
        bus = cls(connection, endpoint, source)
        try:
            bus._state = await bus._journal.ensure(deadline)
        except BaseException:
            await bus.close()
            raise
        return bus

    @property
    def client_id(self) -> int:
        """The broker's number for our connection; another one after each reconnect."""
        return self._connection.client_id

    @property
    def connected(self) -> bool:
        """True while the connection stands."""
        return self._connection.connected

    @property
    def dropped(self) -> dict[str, int]:
        """What was lost on our side, by cause or subject: posts (`full`, `forbidden`, `refused`) and live messages.

        Dropped live messages of stored events are read from the log afterwards; the numbers only tell that we are slow.
        """
        return dict(self._outbox.dropped + self._connection.dropped)

    @property
    def ahead(self) -> float:
        """What the broker's clock shows, in seconds since the epoch, less our monotonic clock; see `measure`."""
        return self._state.ahead if self._state is not None else 0.0

    def lease(self, name: str, taken: Callable[[], None]) -> Lease:
        """A lease on `name`, which is not wanted before it is started; `taken` is called when it has become ours."""
        return Lease(self._connection, name, taken=taken, replicas=lambda: self._journal.replicas)

    async def measure(self, deadline: float = 5.0) -> None:
        """Look at the broker's clock again: clocks drift, and somebody may set one.

        Raises:
            ControlPlaneUnreachable: the broker does not answer within `deadline` seconds.
        """
        self._note_state(await self._journal.ensure(time.monotonic() + deadline))

    @property
    def unsent(self) -> int:
        """Posted events that are not stored yet."""
        return len(self._outbox)

    async def close(self) -> None:
        """End all of it at once; what was posted and is not stored yet is lost (see `flush`)."""
        for follow in list(self._follows):
            await follow.stop()
        self._follows.clear()
        await self._outbox.stop()
        await self.registry.stop()
        await self.micro.stop()
        await self._answers.stop()
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})
        await self._news.close()
        await self._connection.close()

    # ------------------------------------------------------------------------------------------------- events out

    async def publish(
        self,
        job: str,
        event: Event,
        *,
        id: str | None = None,  # noqa: A002 - the name CloudEvents gives it
        expect_last: int | None = None,
        trace: str | None = None,
        deadline: float = 10.0,
    ) -> int:
        """Store an event once and return its sequence; tried again with the same id until it is acknowledged.

        Args:
            job: whose event.
            event: what to say.
            id: unique among events of this kind in this job; the same id within two minutes is stored once, whoever
                publishes it. None: a new one.
            expect_last: refuse unless this is the sequence of the newest event of this kind in this job; 0: none yet.
            trace: traceparent it belongs to; None: the current span's.
            deadline: seconds from now.

        Raises:
            StaleWorld: `expect_last` does not hold.
            ControlPlaneUnreachable: not acknowledged in time; it may or may not be stored.
            Unauthorized: the broker forbids it.
            ReknitError: the broker will never take it (too large, for instance).
        """
        letter = sealed(job, event, source=self.source, id=id, trace=trace)
        until = time.monotonic() + deadline
        while True:
            try:
                return await self._journal.append(
                    letter.subject, letter.data, letter.headers, expect_last=expect_last, deadline=until
                )
            except StaleWorld:
                passed = await self._last_of_unreadable(letter.subject, expect_last or 0, until)
                if not passed:
                    raise
                expect_last = passed

    async def _last_of_unreadable(self, subject: str, after: int, deadline: float) -> int:
        """Return the newest sequence after `after` if nothing readable came after it, else 0.

        Nobody follows on a message that nobody can read: without this one stray message would block the log for ever.
        """
        newest = 0
        while (stored := await self._journal.next(subject, max(after, newest) + 1, deadline)) is not None:
            try:
                opened(stored)
            except WireError:
                newest = stored.seq
            else:
                return 0
        return newest

    def post(
        self,
        job: str,
        event: Event,
        *,
        id: str | None = None,  # noqa: A002 - the name CloudEvents gives it
        trace: str | None = None,
    ) -> None:
        """Store an event once, later: posts keep their order and survive outages of the broker, not of this process."""
        self._outbox.put(sealed(job, event, source=self.source, id=id, trace=trace))

    async def flush(self, timeout: float) -> bool:
        """Wait until everything posted is stored; False if it is not within `timeout` seconds."""
        return await self._outbox.flush(timeout)

    async def beat(self, job: str, pulse: Pulse) -> None:
        """Send a heartbeat; while the connection is away it is dropped, for an old heartbeat is worth nothing."""
        if not self.connected:
            return
        member = pulse.worker if isinstance(pulse, WorkerPulse) else pulse.node if isinstance(pulse, NodePulse) else ""
        try:
            await self._connection.send(
                heartbeat_subject(valid_name(job, "job"), valid_name(member, "member")), wire.encode(pulse)
            )
        except NotAnswered as error:
            _log.debug("heartbeat not sent", reason=str(error))

    # -------------------------------------------------------------------------------------------------- events in

    async def follow(
        self,
        callback: Callable[[Received], None],
        *,
        job: str = "*",
        areas: Sequence[str] | None = None,
        from_seq: int = 1,
    ) -> Follow:
        """Hear events in order, each once, over reconnects and restarts of the broker.

        Returns when all that was stored is given to the callback. The callback runs on the loop and must not block; if
        it raises, that is logged and the next event comes.

        Args:
            callback: called with each event.
            job: one job, or `*` for all.
            areas: only these areas (`core.events.AREAS`), None for all.
            from_seq: first sequence to hear; 0: only what is stored from now on.

        Raises:
            Unauthorized: the broker forbids it.
            UsageError: an area that does not exist.
        """
        filters = self._filters(job, areas)

        def sink(stored: Stored) -> None:
            received = self._received(stored)
            if received is not None:
                try:
                    callback(received)
                except Exception as error:  # noqa: BLE001 - the callback's own fault must not hide what follows
                    _log.error("event not taken", subject=stored.subject, seq=stored.seq, exc_info=error)

        if from_seq == 0:
            from_seq = (await self._journal.ensure(time.monotonic() + 10.0)).last + 1
        follow = Follow(self._connection, self._journal, filters, sink)
        self._follows.add(follow)
        try:
            await self._news.elections(self._read_again)
            await follow.start(from_seq)
        except BaseException:
            self._follows.discard(follow)
            raise
        return follow

    async def backlog(
        self, *, job: str = "*", areas: Sequence[str] | None = None, deadline: float = 10.0
    ) -> list[Received]:
        """Return what is stored now, in order.

        Args:
            job: one job, or `*` for all.
            areas: only these areas, None for all.
            deadline: seconds from now after which a lost connection is no longer waited for.

        Raises:
            ControlPlaneUnreachable: the broker is away or stalls beyond the deadline.
            UsageError: an area that does not exist.
        """
        found: list[Received] = []

        def sink(stored: Stored) -> None:
            received = self._received(stored)
            if received is not None:
                found.append(received)

        await self._journal.read(self._filters(job, areas), sink, time.monotonic() + deadline)
        return found

    async def last_world(self, job: str, deadline: float = 10.0) -> Received | None:
        """Return the newest `world.changed` of a job, None if there is none.

        Raises:
            ControlPlaneUnreachable: the broker does not answer within `deadline` seconds.
            WireError: it is there and does not decode.
        """
        subject = f"{ROOT}.{valid_name(job, 'job')}.{WorldChanged.__struct_config__.tag}"
        stored = await self._journal.last(subject, time.monotonic() + deadline)
        return opened(stored) if stored is not None else None

    async def pulses(self, callback: Callable[[str, AnyPulse], None], *, job: str = "*", member: str = "*") -> None:
        """Hear heartbeats: the callback gets the job and the pulse.

        Whoever runs on each node must not hear everybody's: the number of messages would grow with the square of it.

        Args:
            callback: called with each.
            job: one job, or `*` for all.
            member: one worker or node, or `*` for all.

        Raises:
            Unauthorized: the broker forbids it.
        """

        def on_message(message: Msg) -> None:
            try:
                of_job, _area = job_and_area(message.subject)
                pulse: AnyPulse = wire.decode(message.data, AREAS["heartbeat"])
            except ReknitError as error:
                self._count_unreadable(message.subject, error)
                return
            callback(of_job, pulse)

        await self._connection.listen(heartbeat_subject(_job(job), member), on_message)

    async def disconnects(self, callback: Callable[[int, str], None]) -> bool:
        """Hear when a connection to the broker ends: the callback gets its client id and its name.

        Returns False if the endpoint has no system account, or it does not let us in: then this evidence is missing.
        """
        return await self._news.disconnects(self._endpoint, self.source, callback)

    def _filters(self, job: str, areas: Sequence[str] | None) -> list[str]:
        if areas is not None and not areas:
            raise UsageError("no area given", hint="None stands for all areas")
        for area in areas or ():
            if area not in AREAS or area == "heartbeat":
                known = ", ".join(name for name in AREAS if name != "heartbeat")
                raise UsageError(f"there is no area {area!r} of stored events", hint=f"areas: {known}")
        return subjects(_job(job), areas)

    def _received(self, stored: Stored) -> Received | None:
        try:
            return opened(stored)
        except ReknitError as error:
            self._count_unreadable(stored.subject, error, seq=stored.seq)
            return None

    def _count_unreadable(self, subject: str, error: Exception, **where: int) -> None:
        self.unreadable[subject] += 1
        count = self.unreadable[subject]
        if count == 1 or count % 1000 == 0:
            _log.warning("unreadable message skipped", subject=subject, count=count, reason=str(error), **where)

    # ---------------------------------------------------------------------------------------- questions, answers

    async def serve(self, service: str, verb: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        """Answer questions to a service; of several that serve the same, one gets each question.

        If `answer` raises, the asker gets the text.

        Raises:
            Unauthorized: the broker forbids it.
        """
        await self._answers.serve(service, verb, answer)

    async def request(self, service: str, verb: str, payload: bytes = b"", timeout: float = 2.0) -> bytes:
        """Ask a service; if it is not there yet, ask again until `timeout`.

        Raises:
            ControlPlaneUnreachable: no answer in time, or the service failed to answer; the text says which.
        """
        return await request(self._connection, service, verb, payload, timeout)

    async def ask(self, service: str, verb: str, payload: bytes = b"", timeout: float = 2.0) -> bytes | None:
        """Ask once; None if nobody listens there, which the broker knows at once.

        Raises:
            ControlPlaneUnreachable: somebody listens and does not answer in time, or the connection is away.
        """
        return await ask_once(self._connection, service, verb, payload, timeout)

    # -------------------------------------------------------------------------------------------------- come back

    def _came_back(self) -> None:
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check_journal())

    def _read_again(self) -> None:
        for follow in self._follows:
            follow.read_again()

    async def _check_journal(self) -> None:
        try:
            state = await self._journal.ensure(time.monotonic() + 30.0)
        except ReknitError as error:
            _log.warning("the event stream is not there", reason=str(error))
            return
        self._note_state(state)

    def _note_state(self, state: State) -> None:
        before, self._state = self._state, state
        if before is not None and before.created != state.created:
            # Somebody started the broker over an empty store. What was is gone; what is now is heard from its start.
            _log.error("the broker came back with another log: earlier events are lost", now=state.last)
            for follow in self._follows:
                follow.restart()


def _job(job: str) -> str:
    return job if job == "*" else valid_name(job, "job")
