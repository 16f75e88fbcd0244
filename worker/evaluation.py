"""`ring.evaluate`: a dataset measured by all workers together, with the same bits whoever measured what.

The dataset is cut into micro-batches; each has random numbers of its own, so its scores do not depend on who measures
it. Scores go to the log, and everybody folds all of them in order. So there is nothing to agree on and nobody to wait
for: if a worker dies, others measure what is missing; one that replays finds all scores on the log. See `shares` for
who measures what.
"""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
import xxhash

from reknit.core.errors import UsageError
from reknit.core.events import EvaluationFinished, EvaluationPart

from . import sheet
from .batches import Collate, Fetch, length_of, seed_all
from .board import Board
from .means import Sums
from .metric import sums_of
from .overdue import Overdue
from .shares import Shares
from .tracked import Tracked

_POST_EVERY = 0.2
_MOST_IN_A_PART = 500
_PATIENCE = 0.5
"""Seconds without word from a member, at least, until the last of its share is measured by others too."""
_LATE = 2.0
"""... and so many times what a micro-batch took here at most."""
_AGAIN = 10.0
"""Seconds after which scores that did not come back from the log are posted again."""
_LOOK = 0.1

Measure = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """Where in the run the script is; equal on all workers that call at the same place.

    Attributes:
        stage: `before` the loop over a step's micro-batches, `after` it, or at the `end` of the run.
        step: committed steps.
        chain: result chain after them.
    """

    stage: str
    step: int
    chain: int


class Whereabouts(Protocol):
    """What an evaluation must know of the run."""

    def place(self) -> Place:
        """Where the script is.

        Raises:
            UsageError: nowhere that all workers come by.
        """

    def world(self) -> tuple[int, tuple[str, ...]]:
        """Generation, and members in ring order, of the newest world heard."""

    def check(self) -> None:
        """Look whether the script is to go on.

        Raises:
            SystemExit: this worker has left the run, or the run was stopped.
            Exception: what ended the ring.
        """

    def measuring(self, samples: tuple[int, ...]) -> None:
        """A micro-batch of these samples is measured now. Raises as `check`."""

    def hangs(self, why: str) -> None:
        """A micro-batch takes too long, and nobody waits for us (called on another thread)."""


class Evaluations:
    """All evaluations of a run.

    Args:
        run, worker: who we are.
        seed: root of the random numbers.
        tracked: whose buffers must not change.
        run_is: where the run is.
        board: makes the board, at the first evaluation.
    """

    def __init__(
        self, *, run: str, worker: str, seed: int, tracked: Tracked, run_is: Whereabouts, board: Callable[[], Board]
    ) -> None:
        self._run, self._worker, self._seed = run, worker, seed
        self._tracked, self._run_is = tracked, run_is
        self._make_board = board
        self._board: Board | None = None
        self._place = Place("", -1, 0)
        self._counts: dict[str, int] = {}

    def evaluate(
        self, dataset: Any, measure: Measure, *, micro_batch: int, name: str, collate: Collate | None
    ) -> dict[str, float]:
        """See `Ring.evaluate`."""
        place = self._run_is.place()
        samples = length_of(dataset, "ring.evaluate")
        if micro_batch < 1:
            raise UsageError(f"micro_batch is {micro_batch}, must be at least 1", hint="check micro_batch")
        if place != self._place:
            self._place, self._counts = place, {}
        number = self._counts.get(name, 0)
        self._counts[name] = number + 1
        key = f"{place.stage}/{place.step}/{name}/{number}/{place.chain:016x}/{samples}/{micro_batch}"
        began = time.monotonic()
        if self._board is None:
            self._board = self._make_board()
        self._board.forget(place.step)
        work = _Evaluation(key, place, self._board, self._run_is, run=self._run, worker=self._worker)
        fetch = Fetch(dataset, collate)

        def score(batch: int) -> Sums:
            ids = range(batch * micro_batch, min((batch + 1) * micro_batch, samples))
            self._run_is.measuring(tuple(ids))
            seed_all(batch_seed(self._seed, name, number, place.step, batch))
            return sums_of(measure(fetch(ids)), len(ids))

        with untouched(self._tracked), torch.no_grad():
            means = work.run(-(-samples // micro_batch), score)
        if self._worker in self._run_is.world()[1][:2]:
            self._board.finish(
                EvaluationFinished(
                    run=self._run,
                    evaluation=key,
                    step=place.step,
                    worker=self._worker,
                    name=name,
                    means=means,
                    samples=samples,
                    seconds=time.monotonic() - began,
                )
            )
        return means


class _Evaluation:
    """One evaluation as one worker takes part in it."""

    def __init__(self, key: str, place: Place, board: Board, run_is: Whereabouts, *, run: str, worker: str) -> None:
        self._key, self._step = key, place.step
        self._last = place.stage == "end"
        self._board, self._run_is = board, run_is
        self._run, self._worker = run, worker
        self._began = time.monotonic()
        self._slowest = 0.0
        self._measured: dict[int, Sums] = {}  # not seen on the sheet yet
        self._unsaid: dict[int, Sums] = {}  # not posted yet
        self._posted = time.monotonic()

    def run(self, count: int, score: Callable[[int], Sums]) -> dict[str, float]:
        """Measure, help and wait until all micro-batches have scores; return the means."""
        limit = self._board.patience
        if not limit or not self._last:
            return self._take_part(count, score)  # membership looks after us
        overdue = Overdue(limit, self._is_known, self._hangs)

        def watched(number: int) -> Sums:
            overdue.begin(number)
            scored = score(number)
            overdue.end()
            return scored

        try:
            return self._take_part(count, watched)
        finally:
            overdue.close()

    def _hangs(self, number: int) -> None:
        self._run_is.hangs(
            f"ring.evaluate after the last step: micro-batch {number} is being measured for more than "
            f"{self._board.patience:g} s, the others have measured it and finished"
        )

    def _is_known(self, number: int) -> bool:
        with self._board.cv:
            return number in self._board.sheet(self._key)

    def _take_part(self, count: int, score: Callable[[int], Sums]) -> dict[str, float]:
        board = self._board
        cut_for, shares = (-1, -1), Shares((), ("",), "")
        while True:
            generation, members = self._run_is.world()
            with board.cv:
                known = board.sheet(self._key)
                if len(known) >= count:
                    return known.means(count)
                if cut_for != (generation, known.voids):
                    cut_for = generation, known.voids
                    shares = Shares([n for n in range(count) if n not in known], members, self._worker)
                number = shares.next(_Either(known, self._measured), self._is_late)
            if number is None:
                self._say()
                self._run_is.check()
                self._wait(len(known))
                continue
            began = time.monotonic()
            self._measured[number] = self._unsaid[number] = score(number)
            took = time.monotonic() - began
            self._slowest = max(self._slowest, took)
            if len(self._unsaid) >= _MOST_IN_A_PART or time.monotonic() - self._posted + took >= _POST_EVERY:
                self._say()

    def _is_late(self, member: str) -> bool:
        last = max(self._began, self._board.heard(self._key, member))
        return time.monotonic() - last > max(_PATIENCE, _LATE * self._slowest)

    def _say(self) -> None:
        if not self._unsaid:
            return
        self._board.post(
            EvaluationPart(
                run=self._run,
                evaluation=self._key,
                step=self._step,
                worker=self._worker,
                generation=self._run_is.world()[0],
                scores=sheet.pack(self._unsaid),
            )
        )
        self._unsaid = {}
        self._posted = time.monotonic()

    def _wait(self, known: int) -> None:
        """Wait for more on the sheet; what we posted and did not come back in a long while is posted again."""
        board = self._board
        with board.cv:
            now = board.sheet(self._key)
            if len(now) == known:
                board.cv.wait(_LOOK)
            self._measured = {n: s for n, s in self._measured.items() if n not in now}
        if board.connected and time.monotonic() - self._posted > _AGAIN:
            self._unsaid = dict(self._measured)


class _Either(Container[int]):
    """Micro-batches that are on the sheet or on their way there."""

    def __init__(self, known: sheet.Sheet, measured: Container[int]) -> None:
        self._known, self._measured = known, measured

    def __contains__(self, number: object) -> bool:
        return number in self._measured or number in self._known


def batch_seed(seed: int, name: str, number: int, step: int, batch: int) -> int:
    """63-bit seed of one micro-batch's random numbers (torch, numpy, random)."""
    return xxhash.xxh3_64_intdigest(f"evaluation/{seed}/{name}/{number}/{step}/{batch}".encode()) >> 1


@contextmanager
def untouched(tracked: Tracked) -> Iterator[None]:
    """Whatever happens inside, afterwards buffers and the states of random generators are as they were."""
    device = torch.accelerator.current_accelerator()
    module: Any = torch.get_device_module(device) if device is not None else None
    on_devices = module is not None and hasattr(module, "get_rng_state_all") and module.is_initialized()
    device_states = module.get_rng_state_all() if on_devices else []
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    places = [(p, p.tensor) for p in tracked.places() if p.kind != "parameter" and p.tensor is not None]
    values = {id(tensor): tensor.detach().clone() for _, tensor in places}
    try:
        yield
    finally:
        with torch.no_grad():
            for place, tensor in places:
                tensor.copy_(values[id(tensor)])
                place.module._buffers[place.attribute] = tensor  # noqa: SLF001 - forward may have assigned another
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])
        if on_devices:
            module.set_rng_state_all(device_states)
