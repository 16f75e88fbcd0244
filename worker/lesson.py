"""One try to get the state from several teachers at once: each sends its part of the state at exactly the same step.

One thread a teacher talks to it; the learner's own thread chooses the step, hands out the parts, and gives the part of
a teacher that is lost to another one. All parts must agree on step, result chain, layout and size: else all is void.
"""

from __future__ import annotations

import dataclasses
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import xxhash

from reknit.core.events import Member

from . import side
from .copies import StateCopy
from .courtesy import stand_back
from .memory import anonymous
from .parts import Where, meet, span
from .ring.hello import Hello, Refused

_GRACE = 0.3
"""Seconds to wait for further teachers once one has answered."""
_STALLED = 1.0
"""Seconds in which no teacher moves until the step they stand at is asked for, if they say that they rest."""
_PATIENCE = 5.0
"""The same if they do not say so: three steps' time, but not longer."""


class TransferFailed(side.Broken):
    """The state did not arrive whole; it is asked for again."""


class TooLate(TransferFailed):
    """A teacher was past the step already: the next try looks further ahead."""


class Stalled(TransferFailed):
    """Steps do not go on: the next try takes the newest step that a teacher stands at."""


class Disagree(TransferFailed):
    """The parts are not of one state."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Heard:
    """What a source's thread has to tell: `where`, `at`, `past`, `part`, `disagree`, and at its end `lost`."""

    source: _Source
    what: str
    value: Any = None


@dataclasses.dataclass(frozen=True, slots=True)
class _Ask:
    step: int
    exact: bool
    part: int
    parts: int


@dataclasses.dataclass(frozen=True, slots=True)
class _Head:
    """What all parts must agree on."""

    step: int
    chain: int
    digest: bytes
    size: int


class _Watch:
    """Notices that the teachers which are waited for do not get on."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._places: dict[_Source, tuple[int, bool]] = {}
        self._moved = time.monotonic()

    def look(self, heard: _Heard, *, begun: bool) -> None:
        """A source has said at which step it is.

        Raises:
            Stalled: none has moved for too long, and no part has `begun` to arrive.
        """
        if self._places.get(heard.source) != heard.value:
            self._places[heard.source], self._moved = heard.value, time.monotonic()
        still = time.monotonic() - self._moved
        resting = not any(moving for _, moving in self._places.values())
        if not begun and still > (_STALLED if resting else self._patience):
            raise Stalled(f"no step for {still:.1f} s")


class Lesson:
    """One try. `run` on the learner's thread; `abort` from any other.

    Args:
        greet: makes the hello for a teacher.
        secret: the job's secret.
        teachers: 1 to 4 members.
        at_least: the state must not be of an earlier step.
        refusals: how often the step has come too late already.
        stalls: how often the step was not reached, because steps did not go on.
    """

    def __init__(
        self,
        greet: Callable[[Member], Hello],
        secret: str,
        teachers: Sequence[Member],
        *,
        at_least: int,
        refusals: int = 0,
        stalls: int = 0,
    ) -> None:
        self._greet = greet
        self._secret = secret
        self._at_least = at_least
        self._refusals = refusals
        self._stalls = stalls
        self._heard: queue.SimpleQueue[_Heard] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._memory: memoryview | None = None
        self._head: _Head | None = None
        self._papers: tuple[bytes, bytes] | None = None
        self._busy: dict[_Source, int] = {}
        self._tried: dict[int, set[_Source]] = {}
        self._failures: list[str] = []
        self.aborted = False
        self.teachers = len(teachers)
        self._sources = [_Source(self, teacher) for teacher in teachers]

    def run(self) -> StateCopy:
        """Fetch the state.

        Raises:
            TransferFailed: it did not arrive whole; the text says what every teacher said.
        """
        for source in self._sources:
            source.thread.start()
        try:
            places = self._gather()
            step, chosen = meet([place for _, place in places], self._at_least, self._refusals, self._stalls)
            asked = [places[number][0] for number in chosen]
            if len(asked) == 1:
                step = self._at_least
            pace = max(places[number][1].seconds for number in chosen)
            for part, source in enumerate(asked):
                source.asks.put(_Ask(step, len(asked) > 1, part, len(asked)))
            return self._collect(asked, pace)
        finally:
            self.abort()
            for source in self._sources:
                source.thread.join()

    def abort(self) -> None:
        """End all connections."""
        self.aborted = True
        for source in self._sources:
            source.end()

    # ------------------------------------------------------------------------------------ the learner's thread

    def _gather(self) -> list[tuple[_Source, Where]]:
        """Wait for the teachers' first words; a late one is left out, if another is there."""
        places: list[tuple[_Source, Where]] = []
        open_ones = len(self._sources)
        deadline = time.monotonic() + 3 * side.SILENCE
        while len(places) < open_ones:
            try:
                heard = self._heard.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                break
            if heard.what != "where":
                open_ones -= 1
                places = [(source, place) for source, place in places if source is not heard.source]
                continue
            if not places:
                deadline = min(deadline, time.monotonic() + _GRACE)
            places.append((heard.source, heard.value))
        if not places:
            raise TransferFailed(self._why())
        for source in {*self._sources} - {source for source, _ in places}:
            source.end()
        return places

    def _collect(self, asked: list[_Source], pace: float) -> StateCopy:
        """Wait for all parts."""
        self._busy = {source: part for part, source in enumerate(asked)}
        self._tried = {part: {source} for part, source in enumerate(asked)}
        missing: list[int] = []
        watch = _Watch(min(_PATIENCE, max(_STALLED, 3 * pace)))
        while self._busy or missing:
            self._hand_out(missing, [source for source in asked if source not in self._busy and not source.over])
            heard = self._heard.get()  # every busy source speaks, or is lost with its peer's silence
            if self.aborted:
                raise TransferFailed("not needed any more")
            if heard.what == "disagree":
                raise Disagree(heard.value)
            if heard.source not in self._busy:
                continue
            if heard.what == "at":
                watch.look(heard, begun=self._head is not None)
                continue
            part = self._busy.pop(heard.source)
            if heard.what != "part":
                if self._head is None:  # nobody has copied yet: all can be asked for another step
                    raise self._late(heard)
                missing.append(part)
        return self._whole()

    def _late(self, heard: _Heard) -> TransferFailed:
        if heard.what == "past":
            return TooLate(f"{heard.source.teacher.worker} is at step {heard.value} already")
        return TransferFailed(self._why())

    def _whole(self) -> StateCopy:
        head, papers, memory = self._head, self._papers, self._memory
        assert head is not None
        assert memory is not None
        if papers is None or xxhash.xxh3_128(papers[0]).digest() != head.digest:
            raise Disagree("the layout does not fit its digest")
        return StateCopy(head.step, head.chain, papers[0], memory, papers[1])

    def _hand_out(self, missing: list[int], idle: list[_Source]) -> None:
        """Give a lost teacher's part to one that is done with its own: same step, from a copy that is still there."""
        head = self._head
        for part in list(missing):
            assert head is not None
            other = next((source for source in idle if source not in self._tried[part]), None)
            if other is not None:
                missing.remove(part)
                idle.remove(other)
                self._tried[part].add(other)
                self._busy[other] = part
                other.asks.put(_Ask(head.step, True, part, len(self._tried)))
            elif not any(source not in self._tried[part] for source in self._busy):
                raise TransferFailed(self._why())

    def _why(self) -> str:
        return "; ".join(self._failures) or "no teacher answered"

    # ------------------------------------------------------------------------------------ the sources' threads

    def place(self, head: _Head, part: int, parts: int) -> memoryview:
        """Where a part's bytes go; the first part to arrive says what all must agree on."""
        with self._lock:
            if self._head is None:
                self._memory = memoryview(anonymous(head.size))[: head.size]
                self._head = head
            if head != self._head or self._memory is None:
                raise Disagree(f"parts of different states: {self._head} and {head}")
            first, end = span(head.size, part, parts)
            return self._memory[first:end]

    def papers(self, layout: bytes, ledger: bytes) -> None:
        """The layout and the ledger records, which come with part 0."""
        self._papers = (layout, ledger)

    def tell(self, source: _Source, what: str, value: Any = None) -> None:
        """Hand a word to the learner's thread."""
        if what == "lost":
            self._failures.append(f"{source.teacher.worker}: {value}")
        self._heard.put(_Heard(source, what, value))

    def connect(self, teacher: Member, made: Callable[[socket.socket], object]) -> socket.socket:
        """Call a teacher."""
        return side.dial(teacher, self._greet(teacher), self._secret, given_up=lambda: self.aborted, made=made)


class _Source:
    """One teacher and the thread that talks to it."""

    def __init__(self, lesson: Lesson, teacher: Member) -> None:
        self.teacher = teacher
        self.asks: queue.SimpleQueue[_Ask | None] = queue.SimpleQueue()
        self.over = False
        self.thread = threading.Thread(target=self._run, name="learn-part", daemon=True)
        self._lesson = lesson
        self._sock: socket.socket | None = None

    def end(self) -> None:
        """Close; from any thread."""
        self.over = True
        self.asks.put(None)
        side.shutdown(self._sock)

    def _run(self) -> None:
        stand_back()
        lesson = self._lesson
        why = "not needed any more"
        try:
            with lesson.connect(self.teacher, self._made) as sock:
                side.send(sock, {"teachers": lesson.teachers})
                lesson.tell(self, "where", _where(side.receive(sock)))
                while (ask := self.asks.get()) is not None:
                    self._fetch(sock, ask)
        except Disagree as error:
            lesson.tell(self, "disagree", f"{self.teacher.worker}: {error}")
        except (Refused, OSError, side.Broken, KeyError, TypeError, ValueError, OverflowError) as error:
            why = f"{error}" or type(error).__name__
        finally:
            self.over = True
            lesson.tell(self, "lost", why)

    def _made(self, sock: socket.socket) -> None:
        self._sock = sock
        if self.over:
            side.shutdown(sock)

    def _fetch(self, sock: socket.socket, ask: _Ask) -> None:
        lesson = self._lesson
        side.send(sock, dataclasses.asdict(ask))
        while "at" in (answer := side.receive(sock)):
            lesson.tell(self, "at", (int(answer["at"]), bool(answer["moving"])))
        if "past" in answer:
            lesson.tell(self, "past", int(answer["past"]))
            return
        if "cannot" in answer:
            raise TransferFailed(str(answer["cannot"]))
        head = _Head(int(answer["step"]), int(answer["chain"]), bytes(answer["digest"]), int(answer["size"]))
        if ask.exact and head.step != ask.step:
            raise Disagree(f"the state of step {head.step} where that of {ask.step} was asked for")
        view = lesson.place(head, ask.part, ask.parts)
        if len(view) != int(answer["bytes"]):
            raise Disagree(f"{answer['bytes']} bytes where {len(view)} were due")
        if ask.part == 0:
            lesson.papers(bytes(answer["layout"]), bytes(answer["ledger"]))
        digest = xxhash.xxh3_128()
        side.receive_into(sock, view, digest.update)
        if side.receive(sock)["hash"] != digest.digest():
            raise TransferFailed("the bytes do not fit their hash")
        lesson.tell(self, "part", ask.part)


def _where(message: dict[str, Any]) -> Where:
    where = Where(int(message["step"]), float(message["seconds"]), bool(message["moving"]), int(message["planned"]))
    if where.step < 0:
        raise TransferFailed("has no state itself")
    return where
