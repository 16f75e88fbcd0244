"""Whole rings inside one process: real engines, real sockets, a pretend model, and a world log that the test writes."""

from __future__ import annotations

import faulthandler
import functools
import hashlib
import sys
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np

from reknit.core.events import Member, WorldChanged
from reknit.worker.copies import StateCopy
from reknit.worker.digest import MAJORITY
from reknit.worker.engine import Engine
from reknit.worker.exchange import Exchange
from reknit.worker.identity import Identity
from reknit.worker.ports import Memory
from reknit.worker.ring.control import SlotNote
from reknit.worker.ring.listener import Listener
from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.teaching import Teacher
from reknit.worker.transport.bounds import Bounds
from reknit.worker.transport.buckets import lay_out, whole_sections
from reknit.worker.transport.collective import Collective
from reknit.worker.transport.gloo import GlooGroup
from reknit.worker.transport.point import HostPoint
from reknit.worker.work import Apply, Begin, ComeBack, Compute, Copy, Done, Leave, Load, Rehearse, Restore, Verify

FLOATS = 3000
SHAPE = Shape(
    (
        Section("f4", 0, 4 * FLOATS),
        Section("f8", 4 * FLOATS, 4 * FLOATS + 16),
        Section("raw", 4 * FLOATS + 16, 4 * FLOATS + 24),
    )
)


def wait_until(true: Callable[[], bool], seconds: float = 30.0, what: str = "") -> None:
    """Poll until `true()`; fail loudly after `seconds`."""
    deadline = time.monotonic() + seconds
    while not true():
        if time.monotonic() > deadline:
            faulthandler.dump_traceback(sys.__stderr__)
            raise AssertionError(f"not within {seconds} s: {what or true}")
        time.sleep(0.002)


def gradient(step: int, slot: int, weights: np.ndarray) -> np.ndarray:
    """A slot's pretend gradient: depends on step, slot and weights, and is awkward to sum in another order."""
    rng = np.random.default_rng(step * 1000 + slot)
    return (rng.standard_normal(FLOATS) * 10.0 ** rng.integers(-6, 6, FLOATS) + 0.01 * weights).astype(np.float32)


def proof_of(slot: np.ndarray) -> int:
    """Digest of all that a slot's buffer holds."""
    return int.from_bytes(hashlib.sha256(slot.tobytes()).digest()[:8], "little") or 1


class PretendWorker:
    """One worker: an engine and a main thread that runs a pretend training loop."""

    def __init__(
        self,
        name: str,
        *,
        slots: int,
        total: int,
        used: Callable[[int], int] | None = None,
        seed: int = 0,
        verify: bool = True,
        exact: bool = False,
    ) -> None:
        """`exact`: sums go over gloo, in fixed point."""
        self.name = name
        self.slots = slots
        self.weights = np.random.default_rng(seed).standard_normal(FLOATS).astype(np.float32)
        self.counter = 0
        self.computed: list[tuple[int, int]] = []
        self.applied: list[int] = []
        self.rehearsals: list[tuple[int, str]] = []
        self.outlet = Memory()
        self.registered: list[tuple[int, int]] = []
        self.outcome = ""
        self.error: BaseException | None = None
        self.paused = False
        self.trail: list[str] = []
        self.hold: Callable[[int, int], None] = lambda step, slot: None
        self.meddle: Callable[[str, int], None] = lambda when, step: None
        self.watched = (-1, 0)
        self.bounds = Bounds(SHAPE, whole_sections(SHAPE)) if exact else None
        self.take_bounds = self.bounds.take if self.bounds is not None else lambda result: None
        shape = self.bounds.shape if self.bounds is not None else SHAPE
        self.shared = Exchange(name, 1, shape, used or (lambda step: slots), total)
        self.shared.weights.verify = verify
        self.teacher = Teacher(self.shared)
        self.listener = Listener("job", name, "secret", "127.0.0.1", self._arrived)
        identity = Identity("job", "run", name, name, "secret")
        self.engine = Engine(
            identity,
            self.shared,
            slots,
            listener=self.listener,
            outlet=self.outlet,
            register=lambda incarnation, held: self.registered.append((incarnation, held)),
            loss_of=lambda result: float(result.buffer[4 * FLOATS : 4 * FLOATS + 8].view(np.float64)[0]),
            transport=self._over_gloo(self.bounds) if self.bounds is not None else None,
        )
        self.engine.caller.fresh_digest = int.from_bytes(hashlib.sha256(self.weights.tobytes()).digest()[:8], "little")
        self.thread = threading.Thread(target=self._main, daemon=True)

    def _over_gloo(self, bounds: Bounds) -> Collective:
        point = HostPoint(lay_out(SHAPE, whole_sections(SHAPE)), self.slots)
        return Collective(point, bounds, functools.partial(GlooGroup.meet, host="127.0.0.1"), self.shared.moved)

    def _arrived(self) -> None:
        self.teacher.arrived(self.listener)
        self.engine.feeder.arrived(self.listener)
        self.shared.notify()

    def pause_at(self, step: int, slot: int = 0) -> threading.Event:
        """Stop computing at the first slot of this worker at or after (step, slot); goes on when the event is set."""
        gate = threading.Event()
        self.paused = False

        def hold(now: int, at: int) -> None:
            while (now, at) >= (step, slot) and not gate.is_set() and not self.shared.closed:
                self.paused = True
                gate.wait(0.001)

        self.hold = hold
        return gate

    def start(self) -> None:
        self.engine.start()
        self.thread.start()

    @property
    def member(self) -> Member:
        return Member(
            worker=self.name, incarnation=self.shared.incarnation, node=self.name, pid=0, address=self.listener.address
        )

    def kill(self) -> None:
        """As SIGKILL: all its sockets close, no further word."""
        self.outcome = "killed"
        self.engine.close()
        self.shared.fail(SystemExit())
        self.listener.close()
        self.thread.join()

    def close(self) -> None:
        self.engine.close()
        self.listener.close()
        self.shared.fail(SystemExit())
        self.thread.join(5)

    def _main(self) -> None:
        try:
            self._train()
        except SystemExit:
            return
        except BaseException as error:  # noqa: BLE001 - the test reads it
            self.error = error

    def _train(self) -> None:
        shared = self.shared
        while True:
            work = shared.take()
            match work:
                case ComeBack():
                    self.engine.come_back()
                case Restore():
                    shared.restored(0, 0)
                case Load(state):
                    self._load(bytes(state.memory))
                    self.engine.ledger.take_over(state.ledger)
                    self.note(f"load {state.step}", self.weights)
                    shared.loaded(state.step)
                    shared.begin(state.step)
                case Begin(step):
                    shared.begin(step)
                case Verify() | Rehearse():
                    self._compare(work)
                case Copy(step):
                    shared.copies.begin(step)
                    raw = memoryview(self._state())
                    shared.copies.answer(
                        StateCopy(step, self.chain_before(step), b"", raw, self.engine.ledger.export())
                    )
                case Compute(step, slot):
                    self._watch(step)
                    self.hold(step, slot)
                    self.meddle("compute", step)
                    self.note(f"compute {step}.{slot}", self.weights)
                    self.computed.append((step, slot))
                    self._compute(step, slot)
                    self.meddle("put", step)
                case Apply(step, result):
                    self.meddle("apply", step)
                    total = result.buffer[: 4 * FLOATS].view(np.float32)
                    self.weights = self.weights - np.float32(1e-3) * total / np.float32(self.slots)
                    self.take_bounds(result.buffer)
                    self.counter += int(result.buffer[4 * FLOATS + 16 :].view(np.int64)[0])
                    self.applied.append(step)
                    self.note(f"apply {step}", self.weights)
                    self.meddle("applied", step)
                    shared.begin(step + 1)
                case Leave(reason):
                    self.outcome = f"left: {reason}"
                    return
                case Done():
                    self.outcome = "done"
                    return

    def _watch(self, step: int) -> None:
        """Look at the own weights before the first slot of a step, where no majority will (as `digest.Watch` does)."""
        if self.watched[0] != step and self.shared.weights.witnesses < MAJORITY:
            self.watched = step, int(self.digest[:16], 16) or 1

    def _compare(self, work: Verify | Rehearse) -> None:
        shared, step = self.shared, work.step
        if isinstance(work, Rehearse):
            self.note(f"rehearse {step}.{work.slot}", self.weights)
            self.rehearsals.append((step, shared.rehearsed(proof_of(self._slot(step, work.slot)))))
            return
        self.meddle("verify", step)
        self.note(f"verify {step}", self.weights)
        digest = int(self.digest[:16], 16) or 1
        changed = self.watched[0] == step and self.watched[1] != digest
        before = self.watched[1] if changed else 0
        shared.verified(step, digest, before=before, state=digest if step == shared.total else 0)
        self.meddle("verified", step)

    def _compute(self, step: int, slot: int) -> None:
        buffer = self.shared.pool.take()
        right = self._slot(step, slot)
        buffer[: len(right)] = right
        proved = slot == self.shared.proof_slot(step)
        self.shared.put(step, slot, buffer, SlotNote(slot, proof=proof_of(right)) if proved else None)

    def _slot(self, step: int, slot: int) -> np.ndarray:
        """What a slot's buffer must hold."""
        numbers = np.array([float(slot), 1.0]).view(np.uint8), np.array([step * 100 + slot]).view(np.uint8)
        return np.concatenate([gradient(step, slot, self.weights).view(np.uint8), *numbers])

    def _state(self) -> bytes:
        bounds = self.bounds.exponents.tobytes() if self.bounds is not None else b""
        return bounds + self.weights.tobytes() + self.counter.to_bytes(8, "little")

    def _load(self, raw: bytes) -> None:
        self.watched = -1, 0
        if self.bounds is not None:
            size = self.bounds.exponents.nbytes
            self.bounds.exponents, raw = np.frombuffer(raw[:size], np.int32).copy(), raw[size:]
        self.weights = np.frombuffer(raw[:-8], np.float32).copy()
        self.counter = int.from_bytes(raw[-8:], "little")

    def chain_before(self, step: int) -> int:
        result = self.shared.results.get(step - 1)
        return result.of.chain if result is not None else self.shared.chain

    def note(self, what: str, weights: np.ndarray) -> None:
        """Remember what was done, in which generation, and a hash of the weights then."""
        self.trail.append(f"{what} g{self.shared.generation} {hashlib.sha256(weights.tobytes()).hexdigest()[:6]}")

    def story(self) -> str:
        """Everything that matters for a hang, in one line."""
        x = self.shared
        return (
            f"{self.name}.{x.incarnation} outcome={self.outcome!r} error={self.error} phase={x.phase} "
            f"generation={x.generation}/{x.world and x.world.generation} step={x.step} "
            f"main={x.main_step} total={x.total} "
            f"current={x.current} whole={x.whole} owners={[(r.worker, r.first, r.end) for r in x.owners]} "
            f"computed={sorted(x.computed)} results={sorted(x.results)} load={x.load and x.load.step} "
            f"copies={[(c.at_least, c.begun) for c in x.copies.wanted]} failures={self.engine._learner.failures[-3:]} "
            f"refused={self.listener.refusals[-3:]} events={[type(e).__name__ for e in self.outlet.events[-3:]]} "
            f"members={[m.worker for m in x.world.members] if x.world else None}"
        )

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.weights.tobytes() + self.counter.to_bytes(8, "little")).hexdigest()


class Rings:
    """A world log by hand: says which workers form the next world."""

    def __init__(self) -> None:
        self.generation = 0
        self.workers: dict[str, PretendWorker] = {}
        self.newest: WorldChanged | None = None

    def add(self, worker: PretendWorker) -> PretendWorker:
        """Start a worker; it knows the newest world, as one that registers does."""
        self.workers[worker.name] = worker
        worker.start()
        if self.newest is not None:
            worker.engine.on_world(self.newest)
        return worker

    def world(self, names: Sequence[str], status: str = "running", *, planned: bool = False, **roles: str) -> None:
        self.generation += 1
        members = tuple(
            Member(
                **{f: getattr(self.workers[n].member, f) for f in ("worker", "incarnation", "node", "pid", "address")},
                role=roles.get(n, "active"),
            )
            for n in names
        )
        event = WorldChanged(generation=self.generation, run="run", status=status, members=members, planned=planned)
        self.newest = event
        for worker in self.workers.values():
            if worker.outcome != "killed":
                worker.engine.on_world(event)

    def finish(self, names: Sequence[str]) -> list[str]:
        """Wait until these are done; their digests."""

        def over() -> bool:
            for n in names:
                if self.workers[n].error:
                    raise self.workers[n].error
            return all(self.workers[n].outcome for n in names)

        try:
            wait_until(over, what=f"{names} done")
        except AssertionError as error:
            raise AssertionError("\n".join([str(error), *(self.workers[n].story() for n in self.workers)])) from None
        return [self.workers[n].digest for n in names]

    def close(self) -> None:
        for worker in self.workers.values():
            if worker.outcome != "killed":
                worker.close()
