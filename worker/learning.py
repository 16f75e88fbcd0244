"""How a learner gets the state from its peers, while the ring goes on: `Fetcher`, again and again until it fits.

`Learner` is the fetcher of a member that learns inside the ring, from the members that the roll call found current.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from reknit.core import log
from reknit.core.errors import WireError
from reknit.core.events import Member

from . import side
from .copies import StateCopy
from .exchange import Exchange
from .lesson import Disagree, Lesson, Stalled, TooLate
from .parts import AT_MOST, spread
from .ring.hello import Hello, Refused

_RETRY = 0.1
_MISMATCHES = 2
"""Tries whose parts did not fit each other, until the whole state is asked of one teacher."""
_log = log.get("learning")


class Fetcher:
    """Fetches the state in the background, striped over the teachers, until a copy has been taken in.

    Args:
        job, worker, secret: who we are.
        shared: where the copy goes.
        at_most: teachers asked at once.
        unfit: called (with locks held: it must only make a note) when a copy does not fit the chain of the results.

    Attributes:
        failures: what went wrong lately, for logs and tests.
    """

    def __init__(
        self,
        job: str,
        worker: str,
        secret: str,
        shared: Exchange,
        *,
        at_most: int = AT_MOST,
        unfit: Callable[[], object] = lambda: None,
    ) -> None:
        self._job, self._worker, self._secret = job, worker, secret
        self._shared = shared
        self._at_most = at_most
        self._unfit = unfit
        self._cv = threading.Condition()
        self._members: tuple[Member, ...] = ()
        self._generation = 0
        self._wanted: int | None = None
        self._chains: dict[int, int] = {}
        self._ahead: StateCopy | None = None
        self._lesson: Lesson | None = None
        self._thread: threading.Thread | None = None
        self._closed = False
        self.failures: list[str] = []

    def teachers(self, members: Sequence[Member], generation: int) -> None:
        """Who has the state now; a lesson under way goes on."""
        with self._cv:
            self._members, self._generation = tuple(members), generation
            self._cv.notify_all()

    def fetch(self, at_least: int, chain: int | None) -> None:
        """Get the state of this step or a later one; `chain`, if known, is the result chain before it."""
        with self._cv:
            self._closed = False
            self._wanted = at_least
            self._chains = {} if chain is None else {at_least: chain}
            self._ahead = None
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="ring-learn", daemon=True)
                self._thread.start()
            self._cv.notify_all()

    def forget(self) -> None:
        """What was to be fetched is not needed any more."""
        with self._cv:
            self._wanted = self._ahead = None
            self._chains = {}
            if self._lesson is not None:
                self._lesson.abort()
            self._cv.notify_all()

    def chain_after(self, step: int, chain: int) -> None:
        """The result of `step` has come, and this is the result chain after it: a copy must fit it."""
        with self._cv:
            if self._wanted is None:
                return
            self._chains[step + 1] = chain
            if self._ahead is not None and self._ahead.step <= step + 1:
                copy, self._ahead = self._ahead, None
                self._accept(copy)

    def stop(self) -> None:
        """End the thread and all connections; `fetch` may begin again."""
        with self._cv:
            self._closed = True
            self._wanted = self._ahead = None
            if self._lesson is not None:
                self._lesson.abort()
            thread, self._thread = self._thread, None
            self._cv.notify_all()
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ------------------------------------------------------------------------------------- the fetcher's thread

    def _run(self) -> None:
        refusals = stalls = mismatches = turn = 0
        while True:
            with self._cv:
                while not self._closed and (self._wanted is None or self._ahead is not None or not self._members):
                    self._cv.wait()
                    refusals = stalls = 0
                if self._closed or self._wanted is None:
                    return
                at_most = self._at_most if mismatches < _MISMATCHES else 1
                teachers = spread(self._members, self._worker, turn)[:at_most]
                self._lesson = Lesson(
                    self._greeting(self._generation),
                    self._secret,
                    teachers,
                    at_least=self._wanted,
                    refusals=refusals,
                    stalls=stalls,
                )
            try:
                self._take(self._lesson)
            except TooLate as error:
                refusals, stalls = refusals + 1, 0
                self._note(error, 0.0)
            except Stalled as error:
                stalls += 1
                self._note(error, 0.0)
            except Disagree as error:
                mismatches += 1
                if mismatches == _MISMATCHES:
                    _log.warning("teachers' states differ; the whole state is asked of one", why=str(error))
                self._note(error, _RETRY)
            except (Refused, OSError, side.Broken, WireError) as error:
                turn, stalls = turn + 1, 0
                self._note(error, _RETRY)

    def _take(self, lesson: Lesson) -> None:
        copy = lesson.run()
        with self._cv:
            self._lesson = None  # nor anything else here keeps the copy's memory
            self._accept(copy)

    def _accept(self, copy: StateCopy) -> None:
        """Take a copy in if it is late enough and fits the result chain; with the lock."""
        if self._wanted is None or copy.step < self._wanted:
            return
        chain = self._chains.get(copy.step)
        if self._chains and chain is None:
            self._ahead = copy  # the feed has yet to come so far
        elif chain is not None and chain != copy.chain:
            self._note(Disagree(f"result chain {copy.chain:016x} before step {copy.step}, {chain:016x} was due"), 0.0)
            self._unfit()
        elif self._shared.take_in(copy):
            self._wanted, self._chains = None, {}
            _log.debug("state received", step=copy.step, mb=len(copy.memory) // 10**6)

    def _greeting(self, generation: int) -> Callable[[Member], Hello]:
        return lambda teacher: Hello(
            self._job, "state", generation, self._worker, self._shared.incarnation, teacher.worker
        )

    def _note(self, error: Exception, seconds: float) -> None:
        self.failures = [*self.failures[-15:], str(error)]
        _log.debug("state not received", why=str(error))
        if seconds:
            with self._cv:
                if not self._closed and self._wanted is not None:
                    self._cv.wait(seconds)


class Learner:
    """Fetches the state inside the ring."""

    def __init__(self, job: str, worker: str, secret: str, shared: Exchange) -> None:
        self._fetcher = Fetcher(job, worker, secret, shared)

    @property
    def failures(self) -> list[str]:
        """What went wrong lately."""
        return self._fetcher.failures

    def learn(self, teachers: Sequence[Member], generation: int, at_least: int) -> None:
        """From now on learn from these members; results from step `at_least` on are being queued."""
        self._fetcher.teachers(teachers, generation)
        self._fetcher.fetch(at_least, None)

    def forget(self) -> None:
        """What was to be learnt is not needed any more."""
        self._fetcher.forget()

    def close(self) -> None:
        """Give up; the session is over."""
        self._fetcher.stop()
