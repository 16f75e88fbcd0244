"""A run without a ring: members complete the same results in lockstep, feed and teach; candidates follow them.

Results are functions of their step, so the right weights of every step are known (`Truth`). Sockets, threads, exchange,
feeder, teacher and candidate are the real ones.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from reknit.core.events import Member, Range, WorldChanged
from reknit.worker.backlog import Limit
from reknit.worker.candidate import Candidate
from reknit.worker.copies import StateCopy, cover
from reknit.worker.exchange import Exchange
from reknit.worker.feed import Feeder
from reknit.worker.ring import chain as chains
from reknit.worker.ring.control import Settled
from reknit.worker.ring.listener import Listener
from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.ring.resend import Committed
from reknit.worker.teaching import Teacher
from reknit.worker.work import Apply, Begin, Copy, Load, Result
from support.rings import wait_until

SECRET = "secret"
TOTAL = 1_000_000


class Truth:
    """Results, chains and weights of every step; weights are folded, so their order matters.

    Args:
        floats: of a result and of the weights.
    """

    def __init__(self, floats: int = 5000) -> None:
        self.floats = floats
        self.shape = Shape((Section("f4", 0, 4 * floats),))
        self._base = np.random.default_rng(7).standard_normal(floats).astype(np.float32)
        self.chains = [0]
        self._weights = self.fresh()
        self.digests = [digest(self._weights)]
        self._lock = threading.Lock()

    def fresh(self) -> np.ndarray:
        return np.ones(self.floats, np.float32)

    def result(self, step: int) -> np.ndarray:
        return np.roll(self._base, step * 13) * np.float32(1 + step % 5)

    def apply(self, weights: np.ndarray, result: np.ndarray) -> np.ndarray:
        return weights * np.float32(0.9) + result

    def until(self, step: int) -> None:
        """Know everything up to the weights before `step`."""
        with self._lock:
            while len(self.chains) <= step:
                result = self.result(len(self.chains) - 1)
                self.chains.append(chains.follow(self.chains[-1], result.view(np.uint8)))
                self._weights = self.apply(self._weights, result)
                self.digests.append(digest(self._weights))

    def before(self, step: int) -> np.ndarray:
        """The right weights before a step."""
        weights = self.fresh()
        for number in range(step):
            weights = self.apply(weights, self.result(number))
        return weights

    def committed(self, step: int) -> Committed:
        self.until(step + 1)
        owners = (Range(worker="nobody", first=0, end=1),)
        return Committed(step, 1, owners, Settled(owners, chain=self.chains[step]), self.chains[step + 1], 0)


def digest(weights: np.ndarray) -> str:
    return hashlib.sha256(weights.tobytes()).hexdigest()[:16]


class Script:
    """A main thread: applies results, loads and copies the state; checks the weights of every step."""

    def __init__(self, name: str, truth: Truth, *, pace: float = 0.0, weights: np.ndarray | None = None) -> None:
        self.name = name
        self.truth = truth
        self.pace = pace
        self.weights = truth.fresh() if weights is None else weights
        self.shared = Exchange(name, 1, truth.shape, lambda step: 1, TOTAL)
        self.applied: list[int] = []
        self.loads: list[int] = []
        self.copied: list[tuple[int, int, int]] = []
        self.error: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()
        self.spoil: Callable[[StateCopy], StateCopy] = lambda copy: copy
        self.thread = threading.Thread(target=self._main, name=f"script-{name}", daemon=True)

    def _main(self) -> None:
        try:
            while True:
                self._do(self.shared.take())
        except SystemExit:
            return
        except BaseException as error:  # noqa: BLE001 - the test reads it
            self.error = error

    def _do(self, work: object) -> None:
        shared = self.shared
        match work:
            case Begin(step):
                shared.begin(step)
            case Load(copy):
                self.weights = np.frombuffer(bytes(copy.memory), np.float32).copy()
                self.loads.append(copy.step)
                self._check(copy.step)
                shared.loaded(copy.step)
                shared.begin(copy.step)
            case Apply(step, result):
                self.gate.wait()
                if self.pace:
                    threading.Event().wait(self.pace)
                self.weights = self.truth.apply(self.weights, result.buffer.view(np.float32))
                self.applied.append(step)
                self._check(step + 1)
                shared.begin(step + 1)
            case Copy(step):
                self._copy(step)
            case _:
                raise AssertionError(work)

    def _copy(self, step: int) -> None:
        shared = self.shared
        wanted = shared.copies.begin(step)
        raw = self.weights.tobytes()
        first, end = cover(wanted, len(raw))
        self.copied.append((step, first, end))
        copy = StateCopy(
            step, self.truth.chains[step], b"layout", memoryview(raw[first:end]), b"ledger", first=first, size=len(raw)
        )
        shared.copies.answer(self.spoil(copy))

    def _check(self, step: int) -> None:
        self.truth.until(step)
        if digest(self.weights) != self.truth.digests[step]:
            raise AssertionError(f"{self.name}: wrong weights before step {step}")

    def stop(self) -> None:
        self.gate.set()
        with self.shared.cv:
            self.shared.closed = True
        self.shared.fail(SystemExit())
        if self.thread.ident is not None:
            self.thread.join(10)


class PretendMember(Script):
    """A member: what `Run.complete` gives it, it applies, feeds and teaches."""

    def __init__(
        self, name: str, truth: Truth, *, pace: float = 0.0, limit: Limit | None = None, start: int = 0
    ) -> None:
        super().__init__(name, truth, pace=pace, weights=truth.before(start))
        truth.until(start)
        self.shared.step = self.shared.ready_at = start
        self.shared.chain = truth.chains[start]
        self.shared.current = self.shared.whole = True
        self.shared.phase = "compute"
        self.feeder = Feeder(self.shared, limit=limit or Limit(1 << 30))
        self.teacher = Teacher(self.shared)
        self.listener = Listener("job", name, SECRET, "127.0.0.1", self._arrived)
        self.thread.start()

    def _arrived(self) -> None:
        self.teacher.arrived(self.listener)
        self.feeder.arrived(self.listener)

    @property
    def member(self) -> Member:
        return Member(worker=self.name, incarnation=1, node=self.name, pid=0, address=self.listener.address)

    def complete(self, step: int) -> None:
        buffer = self.shared.pool.take()
        buffer[:] = self.truth.result(step).view(np.uint8)
        result = Result(buffer, self.truth.committed(step))
        self.shared.complete(result)
        self.feeder.committed(result)

    def wait_for(self, step: int) -> None:
        """Wait until the script has applied everything before `step`."""
        wait_until(lambda: self.shared.main_step == step or self.error or self.shared.closed)
        assert self.error is None, self.error

    def close(self) -> None:
        self.stop()
        self.feeder.close()
        self.teacher.close()
        self.listener.close()


class PretendCandidate(Script):
    """A candidate and its script."""

    def __init__(self, name: str, truth: Truth, *, pace: float = 0.0, limit: Limit | None = None) -> None:
        super().__init__(name, truth, pace=pace, weights=np.zeros(truth.floats, np.float32))
        self.fed: list[int] = []
        self.candidate = Candidate(
            "job", name, SECRET, self.shared, anew=self._anew, fed=self._fed, limit=limit or Limit(1 << 30)
        )
        self.thread.start()

    def _anew(self, step: int, chain: int) -> None:
        self.shared.start_learning(step, (), chain)

    def _fed(self, result: Result) -> None:
        self.fed.append(result.of.step)
        self.shared.complete(result)

    @property
    def at(self) -> int:
        """Step its script is at; -1 before it has the state."""
        with self.shared.cv:
            return -1 if self.shared.learning or self.shared.main_step is None else self.shared.main_step

    @property
    def failures(self) -> list[str]:
        return [*self.candidate.failures, *self.candidate._fetcher.failures]

    def close(self) -> None:
        self.candidate.stop()
        self.stop()


class Course:
    """Members in lockstep. `go` makes them run on a thread, `halt` stops them between two steps."""

    def __init__(self, names: Sequence[str], truth: Truth | None = None, *, limit: Limit | None = None) -> None:
        self.truth = truth or Truth()
        self.members = {name: PretendMember(name, self.truth, limit=limit) for name in names}
        self.candidates: list[PretendCandidate] = []
        self.generation = 1
        self.step = 0
        self._running = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        for member in self.members.values():
            member.feeder.serving(self.world())

    def world(self, *more: Member) -> WorldChanged:
        members = (*(m.member for m in self.members.values()), *more)
        return WorldChanged(generation=self.generation, run="run", status="running", members=members)

    def advance(self, steps: int = 1) -> None:
        """So many steps, each once all scripts have applied the one before; then the run rests."""
        self._say("compute")
        for _ in range(steps):
            self._step()
        self._say("wait")

    def _step(self) -> None:
        for member in list(self.members.values()):
            member.complete(self.step)
        self.step += 1
        for member in list(self.members.values()):
            member.wait_for(self.step)

    def _say(self, phase: str) -> None:
        for member in list(self.members.values()):
            member.shared.phase = phase

    def go(self, pace: float = 0.0) -> None:
        self._running = True
        self._say("compute")

        def run() -> None:
            try:
                while self._running:
                    self._step()
                    if pace:
                        time.sleep(pace)
            except BaseException as error:  # noqa: BLE001 - told by `halt`
                self._error = error

        self._thread = threading.Thread(target=run, daemon=True)
        self._thread.start()

    def halt(self) -> int:
        self._running = False
        if self._thread is not None:
            self._thread.join(30)
            assert not self._thread.is_alive()
            self._thread = None
        self._say("wait")
        if self._error is not None:
            raise self._error
        return self.step

    def join(self, name: str) -> PretendMember:
        """One more member, between two steps; it has the state."""
        made = PretendMember(name, self.truth, start=self.step)
        self.members[name] = made
        made.feeder.serving(self.world())
        made.wait_for(self.step)
        return made

    def candidate(self, name: str = "c", **options: object) -> PretendCandidate:
        made = PretendCandidate(name, self.truth, **options)
        self.candidates.append(made)
        return made

    def follow(self, candidate: PretendCandidate, held: int | None = None) -> None:
        candidate.candidate.follow([m.member for m in self.members.values()], self.generation, held)

    def world_with(self, candidate: PretendCandidate) -> None:
        """Every member begins to serve a world that has the candidate in it."""
        self.generation += 1
        me = Member(worker=candidate.name, incarnation=1, node="c", pid=0, address="127.0.0.1:1")
        for member in self.members.values():
            member.feeder.serving(self.world(me))

    def ended(
        self, candidate: PretendCandidate, generation: int = 0, moved: Callable[[], bool] = lambda: False
    ) -> bool:
        """The candidate waits for the end of its feed, as its engine does."""
        members = [m.member for m in self.members.values()]
        return candidate.candidate.wait_end(members, generation or self.generation, moved)

    def caught_up(self, candidate: PretendCandidate) -> None:
        """Wait until the candidate is where the members are now, with their weights."""
        step = self.step

        def there() -> bool:
            if self._error:
                raise self._error
            if candidate.error:
                raise candidate.error
            return candidate.at >= step

        try:
            wait_until(there)
        except AssertionError as error:
            raise AssertionError(f"{error}; at {candidate.at} of {step}: {candidate.failures}") from None

    def close(self) -> None:
        self._running = False
        for candidate in self.candidates:
            candidate.close()
        for member in list(self.members.values()):
            member.close()
        self.halt()
