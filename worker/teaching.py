"""Answers learners that ask for the state: one thread a connection, the copy itself is made by the main thread.

    learner -> {teachers}                                how many it asks at once
    teacher -> {step, seconds, moving, planned}          where it is (`parts.Where`)
    learner -> {step, exact, part, parts}                which bytes of the state at the beginning of which step
    teacher -> {at, moving}, twice a second until it is there
            -> {past}                                    its weights are of this later step: too late; ask again
            or {cannot}                                  why not
            or {step, chain, digest, size, bytes, …}, the bytes, {hash}
    and so on from the third line, until the learner closes.

`digest` is xxh3-128 over the encoded layout, which goes with part 0 only (`layout`, `ledger`); `hash` is xxh3-128 over
the bytes sent. A copy is kept while anyone fetches it, so whoever asks for the same bytes meanwhile gets the same copy.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import xxhash

from . import side
from .copies import CopyWanted, StateCopy
from .courtesy import stand_back
from .exchange import Exchange
from .parts import Where
from .ring.listener import Listener

_RESTING = frozenset({"starting", "wait", "mend", "finish"})
_IDLE = 30.0
"""Seconds that a learner may take until its next question."""


class Teacher:
    """Serves the state to learners.

    Args:
        shared: where the main thread finds what is wanted.
        ready: called (on a teaching thread) when a learner is about to ask for one of so many parts, to touch memory
            for it; what it returns is kept until the lesson is over.
    """

    def __init__(self, shared: Exchange, ready: Callable[[int], object] = lambda _parts: None) -> None:
        self._shared = shared
        self._ready = ready
        self._lock = threading.Lock()
        self._lessons: dict[threading.Thread, socket.socket] = {}
        self._kept: weakref.WeakSet[StateCopy] = weakref.WeakSet()

    def arrived(self, listener: Listener) -> None:
        """Serve every state connection that waits at the listener."""
        while (taken := listener.take_any("state")) is not None:
            thread = threading.Thread(target=self._serve, args=(taken[1],), name="ring-teach", daemon=True)
            with self._lock:
                self._lessons[thread] = taken[1]
            thread.start()

    def close(self) -> None:
        """End all lessons; the session is closed."""
        with self._lock:
            lessons = dict(self._lessons)
        for sock in lessons.values():
            side.shutdown(sock)
        for thread in lessons:
            thread.join()

    def _serve(self, sock: socket.socket) -> None:
        stand_back()
        try:
            with sock, contextlib.suppress(OSError, side.Broken, KeyError, TypeError, ValueError):
                sock.settimeout(side.SILENCE)
                teachers = max(1, int(side.receive(sock, 4096)["teachers"]))
                memory = self._ready(teachers)  # noqa: F841 - held, not read
                side.send(sock, dataclasses.asdict(self._where()))
                while True:
                    sock.settimeout(_IDLE)
                    ask = side.receive(sock)
                    sock.settimeout(side.SILENCE)
                    self._answer(sock, ask)
        finally:
            with self._lock:
                self._lessons.pop(threading.current_thread(), None)

    def _where(self) -> Where:
        shared = self._shared
        with shared.cv:
            step = -1 if shared.main_step is None or shared.learning else shared.main_step
            seconds = max(shared.pace, time.monotonic() - shared.begun_at)  # this step is not shorter than it is now
            ahead = [c.at_least for c in shared.copies.wanted if c.exact and not c.begun and c.at_least > step]
            return Where(step, seconds, not self._rests(), max(ahead, default=-1))

    def _rests(self) -> bool:
        """True while no step will follow: the run is at its end, or waits for members."""
        shared = self._shared
        return shared.main_step is None or shared.main_step >= shared.total or shared.phase in _RESTING

    def _answer(self, sock: socket.socket, ask: dict[str, Any]) -> None:
        wanted = CopyWanted(int(ask["step"]), bool(ask["exact"]), int(ask["part"]), int(ask["parts"]))
        if not 0 <= wanted.part < wanted.parts:
            raise ValueError(f"part {wanted.part} of {wanted.parts}")
        copy = self._find(wanted)
        if copy is None:
            answer = self._wait(sock, wanted)
            if isinstance(answer, dict):
                side.send(sock, answer)
                return
            copy = answer
        if copy is not None:
            _send_part(sock, copy, wanted)

    def _find(self, wanted: CopyWanted) -> StateCopy | None:
        with self._lock:
            return next((copy for copy in self._kept if wanted.exact and wanted.fits(copy)), None)

    def _wait(self, sock: socket.socket, wanted: CopyWanted) -> StateCopy | dict[str, Any] | None:
        """Wait until the main thread has made the copy: the copy, or a refusal, or None if the learner has gone on."""
        shared = self._shared
        said = time.monotonic()
        shared.copies.ask(wanted)
        try:
            while True:
                with shared.cv:
                    if wanted.done is None and not (refusal := self._refusal(wanted)):
                        shared.cv.wait(max(0.0, said + side.ALIVE - time.monotonic()))
                    elif wanted.done is not None:
                        break
                    else:
                        return refusal
                    at, moving = shared.main_step, not self._rests()
                if time.monotonic() >= said + side.ALIVE:
                    if side.pending(sock):
                        return None
                    side.send(sock, {"at": -1 if at is None else at, "moving": moving})
                    said = time.monotonic()
        finally:
            shared.copies.withdraw(wanted)
        with self._lock:
            self._kept.add(wanted.done)
        return wanted.done

    def _refusal(self, wanted: CopyWanted) -> dict[str, Any]:
        """Why it can never be answered; {} as long as it can."""
        shared = self._shared
        if shared.closed:
            return {"cannot": "the session is over"}
        if wanted.failed:
            return {"cannot": wanted.failed}
        if wanted.begun:
            return {}
        step = shared.main_step
        if step is None or shared.learning:
            return {"cannot": "has no state itself"}
        if (wanted.exact and step > wanted.at_least) or (step >= shared.total and step < wanted.at_least):
            return {"past": step}
        return {}


def _send_part(sock: socket.socket, copy: StateCopy, wanted: CopyWanted) -> None:
    view = copy.view(wanted.part, wanted.parts)
    head: dict[str, Any] = {
        "step": copy.step,
        "chain": copy.chain,
        "digest": xxhash.xxh3_128(copy.layout).digest(),
        "size": copy.total,
        "bytes": len(view),
    }
    if wanted.part == 0:
        head |= {"layout": copy.layout, "ledger": copy.ledger}
    side.send(sock, head)
    digest = xxhash.xxh3_128()
    for at in range(0, len(view), side.SLICE):
        piece = view[at : at + side.SLICE]
        side.send_bytes(sock, piece)
        digest.update(piece)
    side.send(sock, {"hash": digest.digest()})
