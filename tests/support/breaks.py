"""A ring inside one process that something happens to: wired workers, a membership of a few lines, and what must hold.

Used like this:

    with Scene("abcd") as scene:
        scene.at(lambda m: m.what == "FINAL", scene.kills("b"))
        scene.play()                    # raises unless everything below holds

After every scene: all that are left have done all steps, with the calm run's bits; nobody has applied a step twice or
left one out; nobody has computed a slot twice in one life; and the ledger has each step once, with all its slots.
"""

from __future__ import annotations

import functools
import json
import os
import threading
import time
from collections.abc import Callable, Collection, Sequence
from types import TracebackType
from typing import Any, Self

from reknit.core.plan import covers
from reknit.worker.ring import lane, linking
from support.rings import PretendWorker, Rings
from support.wires import Break, Message, Wired, Wires

SLOTS, TOTAL = 8, 5
PATIENCE = 30.0
"""Seconds until a scene must be over: a deadline against hangs."""
RELINK = 0.01
"""Seconds until links that broke, with nobody dead, are made anew."""
EVICT = 0.03
"""Seconds until a host that fell silent is left out; longer in real life, which makes no difference to the ring."""


def record(what: str, seconds: float, **more: Any) -> None:
    """Note how long something took, into the file that REKNIT_TIMES names."""
    file = os.environ.get("REKNIT_TIMES", "")
    if file:
        with open(file, "a") as lines:  # noqa: PTH123  (appended whole: several tests may run at once)
            lines.write(json.dumps({"break": what, "seconds": round(seconds, 4), **more}) + "\n")


@functools.cache
def calm(seed: int, total: int) -> str:
    """Digest of the weights after a run of one worker that nothing happens to."""
    rings = Rings()
    try:
        rings.add(PretendWorker("x", slots=SLOTS, total=total, seed=seed))
        rings.world(["x"])
        return rings.finish(["x"])[0]
    finally:
        rings.close()


class Scene:
    """See the module.

    Args:
        names: workers, a letter each, in ring order.
        spares: those of them that have no slots.
        total: steps.
        lanes: even small payloads pass through memory that two workers share.
        differ: everybody is built with other weights; those of whoever begins the run are the run's.
    """

    def __init__(
        self,
        names: Sequence[str],
        *,
        spares: Collection[str] = (),
        total: int = TOTAL,
        lanes: bool = False,
        differ: bool = False,
    ) -> None:
        self.names = list(names)
        self.spares = set(spares)
        self.total = total
        self.seeds = {name: place if differ else 0 for place, name in enumerate(names)}
        self._real = (lane.LEAST, linking.HELLO_PATIENCE)
        lane.LEAST, linking.HELLO_PATIENCE = 1024 if lanes else lane.LEAST, 0.5
        self.wires = Wires(self._rule)
        self.rings = Rings()
        self.dead: set[str] = set()
        self.silent: set[str] = set()
        self.out: set[str] = set()
        self.told: list[str] = []
        self.broke: list[tuple[Message, float]] = []
        self.mended: list[float] = []
        self._plot: list[tuple[Callable[[Message], bool], Callable[[Message], Break | None]]] = []
        self._over = threading.Event()
        self._members: list[str] = []
        self._clerk = threading.Thread(target=self._keep, name="clerk", daemon=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._clerk.ident is not None:
            self._clerk.join(10)
        self.wires.release.set()
        self.rings.close()
        self.wires.close()
        lane.LEAST, linking.HELLO_PATIENCE = self._real

    # -------------------------------------------------------------------------------------------------- the plot

    def at(self, when: Callable[[Message], bool], what: Callable[[Message], Break | None]) -> None:
        """Do something to the first message that suits; several are waited for one after the other."""
        self._plot.append((when, what))

    def _rule(self, message: Message) -> Break | None:
        if {message.sender, message.to} & self.silent:
            return Break(0, _nothing, "silence")
        if not self._plot or not self._plot[0][0](message):
            return None
        what = self._plot.pop(0)[1]
        self.told.append(str(message))
        self.broke.append((message, time.monotonic()))
        return what(message)

    def kills(self, *victims: str, at: float = 0.5, how: str = "reset") -> Callable[[Message], Break]:
        """Kill these workers in the middle of a message; `at`: which part of it has passed."""

        def happens(message: Message) -> Break:
            names = [self._named(v, message) for v in victims]
            self.dead.update(names)
            self.told.append(f"{names} die after {int(at * message.size)} of {message.size} bytes")
            touched = set(names) & {message.sender, message.to}
            return Break(int(at * message.size), functools.partial(self._kill, names), how if touched else "pass")

        return happens

    def resets(self, at: float = 0.5, how: str = "reset") -> Callable[[Message], Break]:
        """Break the connection in the middle of a message; nobody dies."""
        return lambda message: Break(int(at * message.size), _nothing, how)

    def silences(self, victim: str, at: float = 0.5) -> Callable[[Message], Break]:
        """From the middle of a message on nothing comes from a worker or gets to it: its host is gone."""

        def happens(message: Message) -> Break:
            name = self._named(victim, message)
            self.silent.add(name)
            touched = name in (message.sender, message.to)
            return Break(int(at * message.size), _nothing, "silence" if touched else "pass")

        return happens

    def delays(self, at: float = 0.5) -> Callable[[Message], Break]:
        """Hold a message until the ring has been made anew without it, then deliver it."""

        def happens(message: Message) -> Break:
            threading.Timer(EVICT, self._again).start()
            return Break(int(at * message.size), _nothing, "late")

        return happens

    def puts_in(self, data: bytes) -> Callable[[Message], Break]:
        """Put bytes before a message."""
        return lambda message: Break(0, _nothing, "pass", data)

    def flips(self, part: float) -> Callable[[Message], Break]:
        """Turn a bit over on its way; of such messages TCP's checksum lets one in some ten thousand pass."""
        return lambda message: Break(0, _nothing, "pass", flip=int(part * (message.size - 1)))

    def _named(self, victim: str, message: Message) -> str:
        """A worker by its part in the message: `sender`, `to`, `other` (neither of them), or its own name."""
        others = [n for n in self._members if n not in (message.sender, message.to) and n not in self.dead]
        return {"sender": message.sender, "to": message.to, "other": others[0] if others else message.to}.get(
            victim, victim
        )

    def _kill(self, names: Sequence[str]) -> None:
        # all at once: none of them is still there to see another one go
        threads = [threading.Thread(target=self.rings.workers[n].kill) for n in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # ------------------------------------------------------------------------------------------- a small membership

    def _keep(self) -> None:
        since: float | None = None
        while not self._over.wait(0.001):
            workers = self.rings.workers
            # who had finished before it heard of this world takes no part in it
            now = self.rings.generation
            left = {n for n in self._members if workers[n].outcome and workers[n].shared.generation < now}
            gone = {n for n in self._members if workers[n].outcome == "killed"} | left
            broken = bool(gone) or self._broken() or bool(self.silent & set(self._members))
            if not broken:
                since = None
                continue
            since = since or time.monotonic()
            wait = 0.0 if gone else EVICT if self.silent & set(self._members) else RELINK
            if time.monotonic() - since >= wait and not self._finished():
                self.out |= gone | (self.silent & set(self._members))
                # who has finished has the last result and is gone: as in the real one, nobody waits for it
                self._world([n for n in self._members if n not in self.out and not workers[n].outcome])
                since = None

    def _broken(self) -> bool:
        return any(
            type(e).__name__ == "RingBroken" and e.generation == self.rings.generation
            for n in self._members
            for e in list(self.rings.workers[n].outlet.events)
        )

    def _again(self) -> None:
        if not self._over.is_set():
            self._world(self._members)
            self.wires.release.set()

    def _world(self, names: Sequence[str]) -> None:
        if names:
            self._members = list(names)
            self.rings.world(names, **{n: "spare" for n in names if n in self.spares})

    def _finished(self) -> bool:
        return all(self.rings.workers[n].outcome or n in self.silent for n in self.names)

    # ------------------------------------------------------------------------------------------------------ play

    def play(self, least: int | None = None) -> list[Message]:
        """Run to the end and check everything; the messages that passed.

        Args:
            least: so many of the things that were to happen must have happened; all of them by default.
        """
        due = len(self._plot) if least is None else least
        for name in self.names:
            self.rings.add(Wired(name, self.wires, slots=SLOTS, total=self.total, seed=self.seeds[name]))
        self._world(self.names)
        self._clerk.start()
        try:
            self._until_over()
            assert len(self.broke) >= due, f"{len(self.broke)} of {due} things happened"
            self._check()
        except BaseException as error:
            stories = [w.story() for w in self.rings.workers.values()]
            raise AssertionError("\n".join([f"{error}", *self.told, *stories])) from error
        return self.wires.passed

    def _until_over(self) -> None:
        deadline = time.monotonic() + PATIENCE
        step = 0
        while not self._finished():
            for worker in self.rings.workers.values():
                if worker.error is not None and worker.name not in self.dead | self.silent:
                    raise worker.error
            if self.broke and len(self.mended) < len(self.broke):
                here = [self.rings.workers[n] for n in self._members if n not in self.dead | self.silent]
                after = max((w.shared.step for w in here), default=0)
                step = max(step, min((w.shared.step for w in here), default=0))
                if here and min(w.shared.step for w in here) > self.broke[len(self.mended)][0].step and after:
                    self.mended.append(time.monotonic() - self.broke[len(self.mended)][1])
            if time.monotonic() > deadline:
                raise AssertionError("not over in time")
            time.sleep(0.001)

    def _check(self) -> None:
        left = [w for w in self.rings.workers.values() if w.name not in self.dead | self.silent]
        assert left, "nobody is left"
        for worker in left:
            assert worker.error is None, worker.error
            assert worker.outcome == "done", f"{worker.name}: {worker.outcome}"
            # one that had nothing yet, or was healed, may have learned some of the steps from another
            learned = any(t.startswith("load") for t in worker.trail)
            steps = worker.applied if learned else list(range(self.total))
            assert worker.applied == steps == sorted(set(steps)), f"{worker.name} applied {worker.applied}"
            copies = [int(t.split()[1]) - 1 for t in worker.trail if t.startswith("load")]
            last = max([*steps, *copies])  # a copy may be of the end of the run
            assert last == self.total - 1, f"{worker.name} ended with step {last}"
            assert len(worker.computed) == len(set(worker.computed)), f"{worker.name} computed a slot twice"
        # after a death before the first step another one's fresh weights may be the run's
        digests = {calm(seed, self.total) for seed in set(self.seeds.values())}
        found = {w.name: w.digest for w in left}
        assert len(set(found.values())) == 1, f"different bits: {found}"
        assert set(found.values()) <= digests, "other bits than the calm run's"
        self._check_ledger()

    def _check_ledger(self) -> None:
        steps: dict[int, Any] = {}
        for worker in self.rings.workers.values():
            for entry in worker.outlet.records:
                for step in range(entry.first, entry.last + 1):
                    assert covers(entry.ranges, SLOTS), f"step {step} without all slots: {entry.ranges}"
                    before = steps.setdefault(step, entry.ranges)
                    assert before == entry.ranges, f"step {step} was committed twice: {before}, {entry.ranges}"
        assert sorted(steps) == list(range(self.total)), f"the ledger has steps {sorted(steps)}"


def _nothing() -> None:
    pass
