"""A worker that is in no world catches up with a run that goes on: a feed of its results and a striped state.

    candidate.follow(world.members, world.generation, None)    # again at every newer world; from any thread
    ...                                                        # results: `fed`; the state: `Exchange.take_in`
    candidate.wait_end(world.members, world.generation, shared.moved)         # that world has us in it
    candidate.stop()

One thread reads the feed of one member, another fetches the state of a step not before the first that was fed. When the
feeder is lost, another member's feed goes on after the last result; if that has a gap, or more results wait for the
script than may, everything begins anew with a fresh copy.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from reknit.core import log
from reknit.core.errors import WireError
from reknit.core.events import Member

from . import side
from .backlog import Limit, of_a_candidate
from .courtesy import stand_back
from .exchange import Exchange
from .learning import Fetcher
from .parts import spread
from .ring import chain as chains
from .ring import resend
from .ring.hello import Hello, Refused
from .work import Result

_RETRY = 0.1
_TRIES = 4
"""Members that are asked to go on after the last result, before everything begins anew."""
_LONGEST = 30.0
_CALM = 60.0
"""Seconds after which a fresh copy that had to be begun again is forgotten, for the back-off."""
_LOOK = 0.05
_log = log.get("candidate")


class _Gap(side.Broken):
    """This member cannot go on after our last result."""


class _Behind(side.Broken):
    """Too many results wait to be applied."""


class Candidate:
    """Follows a run from outside.

    Args:
        job, worker, secret: who we are.
        shared: where the copy goes (`take_in`), and what has been applied.
        anew: called with (step, chain) before the first result of a new beginning: what was queued is void, the weights
            are not the run's until a copy is loaded; the next result fed is that of `step` (but `anew` may be called
            again before). As `Exchange.start_learning`.
        fed: called with each result, in order, without a gap, its chain checked. As `Exchange.complete`.
        limit: of results that wait to be applied; by default from the free memory at each new beginning.

    `anew` and `fed` run on the candidate's thread, without its locks. No method may be called with `shared.cv` held.

    Attributes:
        failures: what went wrong lately, for logs and tests.
        begun: how often everything has begun anew with a fresh copy.
    """

    def __init__(
        self,
        job: str,
        worker: str,
        secret: str,
        shared: Exchange,
        *,
        anew: Callable[[int, int], None],
        fed: Callable[[Result], None],
        limit: Limit | None = None,
    ) -> None:
        self._job, self._worker, self._secret = job, worker, secret
        self._shared = shared
        self._anew = anew
        self._fed = fed
        self._given_limit = limit
        self._limit = limit or Limit(0)
        self._cv = threading.Condition()
        self._members: tuple[Member, ...] = ()
        self._generation = 0
        self._held: int | None = None
        self._chain = 0
        self._first = 0
        self._running = False
        self._feeder: Member | None = None
        self._feeding = False
        self._sock: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._ended = 0
        self._ending = 0
        self._gave_up = 0
        self._turn = 0
        self._trouble: list[float] = []
        self.failures: list[str] = []
        self.begun = 0
        self._unfit = False
        self._fetcher = Fetcher(job, worker, secret, shared, unfit=self.note_unfit)

    # ------------------------------------------------------------------------------------ from the engine

    def follow(self, members: Sequence[Member], generation: int, held: int | None) -> None:
        """From now on follow the run of these members; called again at each newer world that does not have us in it.

        Args:
            members: of the newest world; this worker, if it is among them, is left out.
            generation: of that world.
            held: last result that this worker's weights (or its queue) have without a gap: a feed that goes on after it
                needs no copy; -1: its fresh state is the run's, nothing done yet; None: it needs a copy. Only looked at
                when nothing is being followed; `Exchange.chain` must be the chain after it.
        """
        with self._cv:
            self._generation = generation
            self._ending = 0
            if not self._running:
                self._running = True
                self._held, self._chain = held, self._shared.chain
                self._first = 0 if held is None else held + 1
                self._limit = self._given_limit or of_a_candidate()
                self._ended = self._gave_up = self._turn = 0
                self._trouble, self._unfit = [], False
                self._thread = threading.Thread(target=self._run, name="candidate", daemon=True)
                self._thread.start()
            self._now_of(members)
            self._fetcher.teachers(self._members, generation)

    def wait_end(self, members: Sequence[Member], generation: int, moved: Callable[[], bool]) -> bool:
        """A world has this worker in it: wait until all results before that world have been fed.

        Args:
            members: of that world: a feeder that is none of them does not know the end.
            generation: of that world.
            moved: True once a newer world exists.

        Returns:
            True if they are all here; False if they cannot be had any more, or `moved()`.
        """
        with self._cv:
            self._ending = generation
            self._now_of(members)
            while self._running and self._ended < generation and self._gave_up < generation:
                if moved():
                    return False
                self._cv.wait(_LOOK)
            return self._ended >= generation

    def stop(self) -> None:
        """End both threads and all connections; `follow` may begin again."""
        with self._cv:
            self._running = False
            side.shutdown(self._sock)
            thread, self._thread = self._thread, None
            self._cv.notify_all()
        self._fetcher.stop()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    @property
    def feeder(self) -> str:
        """Who feeds us now, "" if nobody does, or has not said yet from where on."""
        feeder = self._feeder
        return feeder.worker if feeder is not None and self._feeding else ""

    def _now_of(self, members: Sequence[Member]) -> None:
        self._members = tuple(m for m in members if m.worker != self._worker)
        if self._feeder is not None and not self._member(self._feeder):
            side.shutdown(self._sock)
        self._cv.notify_all()

    def _member(self, feeder: Member) -> bool:
        return any(
            (m.worker, m.incarnation, m.address) == (feeder.worker, feeder.incarnation, feeder.address)
            for m in self._members
        )

    # --------------------------------------------------------------------------------- the candidate's thread

    def _run(self) -> None:
        stand_back()
        failed = gaps = 0
        while (task := self._next_task(failed)) is not None:
            order, generation, ending = task
            if not order:
                failed = 0
                continue
            try:
                self._read(order[0], generation, ending=ending)
                failed = gaps = 0
            except _Behind as error:
                self._note(order[0], error)
                self._restart(str(error))
            except _Gap as error:
                self._note(order[0], error)
                failed, gaps, self._turn = failed + 1, gaps + 1, self._turn + 1
                if gaps >= min(len(order), _TRIES) and not ending:
                    self._restart(str(error))
                    gaps = 0
            except (Refused, OSError, side.Broken, WireError, KeyError, TypeError, ValueError) as error:
                self._note(order[0], error)
                failed, self._turn = failed + 1, self._turn + 1
                if self._unfit:
                    self._restart("the state that it learned does not fit the results of its feeder")
                elif failed % len(order) == 0:
                    self._pause(_RETRY)

    def _next_task(self, failed: int) -> tuple[list[Member], int, bool] | None:
        """Whom to try, in which generation, and whether only the rest before a world is wanted; None at the end."""
        with self._cv:
            while self._running and self._idle():
                self._cv.wait()
            if not self._running:
                return None
            ending = self._ending
            if ending and (failed >= len(self._members) or self._held is None):
                self._gave_up = ending
                self._cv.notify_all()
                self._cv.wait_for(lambda: self._over() or self._ending != ending)
                return [], 0, False
            return spread(self._members, self._worker, self._turn), self._generation, bool(ending)

    def _idle(self) -> bool:
        over = self._ended > 0 and self._ended >= max(self._generation, self._ending)
        return over or not (self._members or self._ending)

    def _over(self) -> bool:
        return not self._running

    def _read(self, feeder: Member, generation: int, *, ending: bool) -> None:
        """Read one member's feed until it ends; raises when it breaks."""
        greeting = Hello(self._job, "feed", generation, self._worker, self._shared.incarnation, feeder.worker)
        with side.dial(feeder, greeting, self._secret, given_up=lambda: not self._running, made=self._made) as sock:
            with self._cv:
                if not self._member(feeder):
                    raise side.Broken("is no member any more")
                self._feeder = feeder
            try:
                side.send(sock, {"after": self._held})
                answer = side.receive(sock, 4096)
                first, chain = int(answer["from"]), int(answer["chain"])
                if self._held is None and not ending:
                    self._begin_anew(first, chain)
                elif self._held is None or first != self._held + 1 or chain != self._chain:
                    raise _Gap(f"goes on with step {first} and chain {chain:016x} after our {self._held}")
                self._feeding = True
                while self._take(sock, side.receive(sock)):
                    pass
            finally:
                with self._cv:
                    self._feeder = self._sock = None
                    self._feeding = False

    def _made(self, sock: socket.socket) -> None:
        with self._cv:
            self._sock = sock
            if self._unfit or not self._running:
                side.shutdown(sock)

    def _begin_anew(self, first: int, chain: int) -> None:
        with self._cv:
            self._held, self._chain, self._first = first - 1, chain, first
            self._limit = self._given_limit or of_a_candidate()
            self.begun += 1
        _log.debug("follows the run", step=first, times=self.begun)
        self._fetcher.forget()
        self._anew(first, chain)
        self._fetcher.fetch(first, chain)

    def _take(self, sock: socket.socket, message: dict[str, Any]) -> bool:
        """One message of the feed; False at its orderly end."""
        if "result" in message:
            self._take_result(sock, message)
        elif "end" in message:
            if int(message["end"]) != self._held:
                raise side.Broken(f"ends after step {message['end']}, {self._held} was the last that came")
            with self._cv:
                self._ended = int(message["generation"])
                self._cv.notify_all()
            return False
        elif "cut" in message:
            raise side.Broken(f"cut off: {message['cut']}")
        return True

    def _take_result(self, sock: socket.socket, message: dict[str, Any]) -> None:
        committed = resend.unpack(bytes(message["result"]))
        size = self._shared.shape.nbytes
        if self._held is None or committed.step != self._held + 1 or int(message["bytes"]) != size:
            raise side.Broken(f"{message['bytes']} bytes of result {committed.step} after {self._held}, not {size}")
        buffer = self._shared.pool.take()
        try:
            side.receive_into(sock, buffer.data)
            if committed.settled.chain != self._chain or chains.follow(self._chain, buffer) != committed.chain:
                raise side.Broken(f"result {committed.step} does not fit the result chain")
        except BaseException:
            self._shared.pool.give(buffer)
            raise
        with self._cv:
            self._held, self._chain = committed.step, committed.chain
        self._fetcher.chain_after(committed.step, committed.chain)
        self._fed(Result(buffer, committed))
        self._check_backlog(size)

    def _check_backlog(self, size: int) -> None:
        shared = self._shared
        with shared.cv:
            applied = self._first if shared.learning or shared.main_step is None else shared.main_step
            waiting = shared.step - max(self._first, applied)
            learning = shared.learning
        if self._limit.exceeded(waiting, size):
            doing = "the state is not here yet" if learning else "applying them is slower than the run"
            raise _Behind(f"{waiting} results wait ({waiting * size / 1e6:.1f} MB): {doing}")

    # ------------------------------------------------------------------------------------------------- trouble

    def _restart(self, why: str) -> None:
        """Everything anew with a fresh copy: at once the first time, later and later when it happens often."""
        self._fetcher.forget()
        now = time.monotonic()
        self._trouble = [t for t in self._trouble if t > now - _CALM] + [now]
        seconds = min(_LONGEST, 0.5 * 2 ** (len(self._trouble) - 2)) if len(self._trouble) > 1 else 0.0
        if seconds:
            _log.warning("cannot keep up with the run", why=why, times=len(self._trouble), again_in=seconds)
        with self._cv:
            self._held, self._unfit = None, False
        self._anew(self._shared.step, self._shared.chain)  # lets the memory go
        self._pause(seconds)

    def _pause(self, seconds: float) -> None:
        def changed(at: tuple[int, int]) -> bool:
            return not self._running or (self._generation, self._ending) != at

        with self._cv:
            at = self._generation, self._ending
            self._cv.wait_for(lambda: changed(at), seconds)

    def note_unfit(self) -> None:
        """The weights here are not the run's: everything begins anew with a fresh copy (any thread, any lock)."""
        self._unfit = True
        side.shutdown(self._sock)

    def _note(self, feeder: Member, error: Exception) -> None:
        self.failures = [*self.failures[-15:], f"{feeder.worker}: {error}"]
        _log.debug("feed ended", feeder=feeder.worker, why=str(error))
