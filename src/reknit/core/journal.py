"""The JetStream stream that stores every event: made if missing, appended to, read back.

Used like this: `journal = Journal(connection)`, `await journal.ensure()`, then `append`, `replay`, `last`.

What was measured of nats-server 2.15 and shapes this file: a compare-and-set append that is sent again after its
acknowledgement was lost is refused as stale *before* its message id is recognised; ids are remembered for two minutes
only; appends are answered with "nobody" while the stream is still being opened.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from reknit.core import log
from reknit.core.connection import Connection, NotAnswered
from reknit.core.errors import ControlPlaneUnreachable, ReknitError, StaleWorld, Unauthorized
from reknit.core.jetstream import EXPECT_LAST, IN_USE, NO_PEERS, NOT_FOUND, NOT_NOW, STALE, Refused, call, unpacked
from reknit.core.replay import replay
from reknit.core.stored import Stored, header_lines, seconds_of
from reknit.core.subjects import LIVE, STORED_SUBJECTS, STREAM

MSG_ID = "Nats-Msg-Id"
REPLICAS = 3
"""Copies of each event where the brokers are a cluster of so many or more: one may die, nothing is lost."""
DUPLICATE_WINDOW = 120.0
"""Seconds for which the broker recognises a message id; later this file looks it up itself."""
_REPLICAS, _AUTO = "reknit-replicas", "auto"
"""Key of a stream's metadata that holds the number of replicas somebody asked for, or that nobody did."""
_DESCRIPTION = "every event of every job, in order"
_ANSWER = 5.0
_FIRST_WAIT, _LONGEST_WAIT = 1.0, 5.0

_log = log.get("journal")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class State:
    """The journal as a whole.

    Attributes:
        created: when it was made; another value means another journal.
        last: its newest sequence.
        ahead: what the broker's clock shows (seconds since the epoch) less our monotonic clock.
    """

    created: str
    last: int
    ahead: float = 0.0


class Journal:
    """The stream, through one connection."""

    def __init__(
        self,
        connection: Connection,
        *,
        stream: str = STREAM,
        duplicate_window: float = DUPLICATE_WINDOW,
        replicas: int = 0,
    ) -> None:
        """Prepare.

        Args:
            connection: to the broker.
            stream: of another name than that of events it can only be read: `read`, `replay`, `last`, `next`.
            duplicate_window: seconds for which the broker shall recognise message ids.
            replicas: on how many brokers of a cluster each event shall be stored; 0: `REPLICAS` as soon as it has as
                many, one until then.
        """
        self._connection = connection
        self._stream = stream
        self._wanted = replicas
        self._window = duplicate_window
        self._newest = 0  # highest sequence known to exist: what is stored from now on is above it

    @property
    def replicas(self) -> int:
        """On how many brokers each event shall be stored."""
        return self._wanted or (REPLICAS if self._connection.clustered else 1)

    @property
    def replicas_told(self) -> dict[str, str]:
        """Metadata of a stream that is stored on so many brokers: whether somebody asked for that number."""
        return {_REPLICAS: str(self._wanted) if self._wanted else _AUTO}

    def lacks_replicas(self, config: dict[str, Any]) -> bool:
        """True if a stream of this configuration shall be on more brokers, and nobody has asked for so few."""
        asked = self._wanted or (config.get("metadata") or {}).get(_REPLICAS) == _AUTO
        return bool(asked) and int(config.get("num_replicas", 1)) < self.replicas

    # ------------------------------------------------------------------------------------------------ the stream

    async def ensure(self, deadline: float) -> State:
        """Make the stream if it is missing; whoever comes first does it, the others find it.

        Args:
            deadline: on the monotonic clock.

        Raises:
            ControlPlaneUnreachable: the broker does not answer by then.
            Unauthorized: it forbids this.
            ReknitError: the stream cannot be made, or one of this name exists that cannot serve.
        """

        async def once() -> State:
            try:
                found = await self._call(f"STREAM.INFO.{STREAM}")
            except Refused as refused:
                if refused.code not in NOT_FOUND:
                    raise
                found = await self._create()
            return self._check(await self._grown(found))

        return await self._until(deadline, once)

    async def _create(self) -> dict[str, Any]:
        config = {
            "name": STREAM,
            "description": _DESCRIPTION,
            "subjects": list(STORED_SUBJECTS),
            "storage": "file",
            "retention": "limits",
            "discard": "new",  # a full stream refuses; it never forgets
            "num_replicas": self.replicas,
            "duplicate_window": int(self._window * 1e9),
            "republish": {"src": ">", "dest": f"{LIVE}.>"},
            "allow_direct": True,
            "metadata": self.replicas_told,
        }
        try:
            return await self._call(f"STREAM.CREATE.{STREAM}", config)
        except Refused as refused:
            if refused.code == NO_PEERS and not self._wanted:
                return await self._call(f"STREAM.CREATE.{STREAM}", {**config, "num_replicas": 1})  # it grows later
            if refused.code != IN_USE:
                raise
            return await self._call(f"STREAM.INFO.{STREAM}")  # another one was faster

    async def _grown(self, found: dict[str, Any]) -> dict[str, Any]:
        """Let a stream that an older version made store the areas that are new since then, and on more brokers.

        A cluster may have had fewer brokers when the stream was made. Replicas are only added here: taking some away is
        for whoever runs the cluster.
        """
        config = found["config"]
        here, replicas = set(config.get("subjects", ())), int(config.get("num_replicas", 1))
        few = self.lacks_replicas(config)
        if config.get("description") != _DESCRIPTION or (here >= set(STORED_SUBJECTS) and not few):
            return found
        more = {"subjects": sorted(here | set(STORED_SUBJECTS)), "num_replicas": max(replicas, self.replicas)}
        try:
            return await self._call(f"STREAM.UPDATE.{STREAM}", {**config, **more})
        except Refused as refused:
            if here < set(STORED_SUBJECTS):
                raise
            _log.debug("stored on fewer brokers than wanted", have=replicas, want=self.replicas, reason=str(refused))
            return found

    def _check(self, found: dict[str, Any]) -> State:
        config = found["config"]
        missing = set(STORED_SUBJECTS) - set(config.get("subjects", ()))
        republish = config.get("republish") or {}
        if missing or republish.get("dest") != f"{LIVE}.>":
            what = f"does not store {', '.join(sorted(missing))}" if missing else f"does not republish to {LIVE}.>"
            raise ReknitError(
                f"the stream {STREAM} at {self._connection.url} exists, but {what}", hint="was it made by hand?"
            )
        ahead = seconds_of(str(found.get("ts", ""))) - time.monotonic()
        state = State(created=str(found["created"]), last=int(found["state"]["last_seq"]), ahead=ahead)
        self._newest = max(self._newest, state.last)
        return state

    # ---------------------------------------------------------------------------------------------------- append

    async def append(
        self,
        subject: str,
        data: bytes,
        headers: dict[str, str],
        *,
        expect_last: int | None = None,
        deadline: float = float("inf"),
    ) -> int:
        """Store one message once and return its sequence; sent again, with the same id, until it is acknowledged.

        Args:
            subject: where.
            data: the message.
            headers: with `MSG_ID`.
            expect_last: refuse unless this is the newest sequence of the subject (0: none yet).
            deadline: on the monotonic clock.

        Raises:
            StaleWorld: another message came first.
            ControlPlaneUnreachable: not acknowledged by the deadline; it may or may not be stored.
            Unauthorized: the broker forbids the subject.
            ReknitError: the broker will never take this message.
        """
        headers = {**headers, "Nats-Expected-Stream": STREAM}
        if expect_last is not None:
            headers[EXPECT_LAST] = str(expect_last)
        above, first_sent, unsure, wait = self._newest, time.monotonic(), False, _FIRST_WAIT

        async def once() -> int:
            nonlocal unsure, wait
            age = time.monotonic() - first_sent
            if unsure and expect_last is None and age > 0.75 * self._window:
                own = await self._find(subject, above + 1, headers[MSG_ID])
                if own:
                    return own
                unsure = False
            try:
                left = max(deadline - time.monotonic(), 0.01)
                answer = await self._connection.ask(subject, data, headers=headers, timeout=min(wait, left))
            except NotAnswered as problem:
                unsure = unsure or problem.why != "nobody"
                wait = min(2 * wait, _LONGEST_WAIT)
                if problem.why == "nobody":
                    await self._ensure_soon(deadline)
                raise
            try:
                return int(unpacked(answer)["seq"])
            except Refused as refused:
                if refused.code not in STALE:
                    raise
                # It may be our own earlier attempt that came first. Then it is the one that follows on `expect_last`.
                own = await self._is_next(subject, (expect_last or 0) + 1, headers[MSG_ID])
                if own:
                    return own
                raise StaleWorld(f"{subject}: {refused}; expected {expect_last}") from None

        seq = await self._until(deadline, once)
        self._newest = max(self._newest, seq)
        return seq

    async def _ensure_soon(self, deadline: float) -> None:
        """Make the stream if it is missing; while brokers elect a leader nobody can tell whether it is."""
        try:
            await self.ensure(min(deadline, time.monotonic() + 1.0))
        except Unauthorized:
            raise
        except ControlPlaneUnreachable as error:
            _log.debug("nobody takes events just now", reason=str(error))

    async def _is_next(self, subject: str, from_seq: int, msg_id: str) -> int:
        found = await self._get({"seq": from_seq, "next_by_subj": subject})
        return found.seq if found and found.headers.get(MSG_ID) == msg_id else 0

    async def _find(self, subject: str, from_seq: int, msg_id: str) -> int:
        found = 0

        def look(stored: Stored) -> None:
            nonlocal found
            if stored.headers.get(MSG_ID) == msg_id:
                found = stored.seq

        await self.replay([subject], from_seq, look, headers_only=True)
        return found

    # ------------------------------------------------------------------------------------------------------ read

    async def last(self, subject: str, deadline: float = float("inf")) -> Stored | None:
        """Return the newest message of a subject, read where the truth is (not from a replica).

        Raises:
            ControlPlaneUnreachable: the broker does not answer by the deadline (on the monotonic clock).
        """
        return await self._until(deadline, lambda: self._get({"last_by_subj": subject}))

    async def next(self, subject: str, from_seq: int, deadline: float = float("inf")) -> Stored | None:
        """Return the first message of a subject with at least this sequence; None if there is none.

        Raises:
            ControlPlaneUnreachable: the broker does not answer by the deadline (on the monotonic clock).
        """
        return await self._until(deadline, lambda: self._get({"seq": from_seq, "next_by_subj": subject}))

    async def read(self, filters: Sequence[str], sink: Callable[[Stored], None], deadline: float) -> None:
        """Give `sink` all that is stored and matches, in order; goes on where it was if the connection breaks.

        Raises:
            ControlPlaneUnreachable: the broker was away, or stalled, when the deadline came (on the monotonic clock).
        """
        last = 0

        def note(stored: Stored) -> None:
            nonlocal last
            last = stored.seq
            sink(stored)

        await self._until(deadline, lambda: self.replay(filters, last + 1, note))

    async def _get(self, query: dict[str, Any]) -> Stored | None:
        try:
            found = (await self._call(f"STREAM.MSG.GET.{self._stream}", query))["message"]
        except Refused as refused:
            if refused.code in NOT_FOUND:
                return None
            raise
        return Stored(
            subject=found["subject"],
            seq=int(found["seq"]),
            headers=header_lines(base64.b64decode(found.get("hdrs", ""))),
            data=base64.b64decode(found.get("data", "")),
            time=seconds_of(found.get("time", "")),
        )

    async def replay(
        self, filters: Sequence[str], from_seq: int, sink: Callable[[Stored], None], *, headers_only: bool = False
    ) -> None:
        """Give `sink` every stored message that matches one of the filters, in order, from a sequence on to the newest.

        Whoever listens to the live subjects before this begins misses nothing.

        Raises:
            NotAnswered: the connection broke or the broker stalled; what was given so far was in order and complete.
        """

        def note(stored: Stored) -> None:
            self._newest = max(self._newest, stored.seq)
            sink(stored)

        await replay(self._connection, self._stream, filters, from_seq, note, headers_only=headers_only)

    # ----------------------------------------------------------------------------------------------------- parts

    async def _call(self, verb: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        return await call(self._connection, verb, body, timeout=_ANSWER)

    async def _until(self, deadline: float, once: Callable[[], Awaitable[T]]) -> T:
        """Try until it works, the broker refuses for good, or time is over."""
        pause = 0.01
        while True:
            await self._connection.wait_connected(deadline)
            try:
                return await once()
            except NotAnswered as error:
                problem = str(error)
            except Refused as refused:
                if refused.status != NOT_NOW:
                    raise ReknitError(f"the broker at {self._connection.url} refused: {refused}") from refused
                problem = f"it refused: {refused}"
            if time.monotonic() + pause > deadline:
                raise ControlPlaneUnreachable(f"the broker at {self._connection.url} did not do it in time: {problem}")
            await asyncio.sleep(pause)
            pause = min(2 * pause, 0.5)
