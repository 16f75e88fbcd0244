"""A transport over a group of a collective library: exact sums in fixed point, so its bits do not depend on the group.

One step: every worker counts its slots with the bounds of the step before; the ring tells all the largest elements;
buckets whose bound does not hold are counted again; one SUM of all lanes; everybody turns the same integers into the
same floats. Then the control piece goes round the ring's links as ever, and carries what the result must hash to.

The engine thread never blocks in a collective: it watches the links, and leaves a group behind at once when they break.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
import xxhash

from reknit.worker.ring.control import Settled
from reknit.worker.ring.link import Link, LinkBroken
from reknit.worker.ring.reduction import Reduction
from reknit.worker.ring.vote import Diverged

from .bounds import Bounds
from .fixed_point import Extent
from .group import CollectiveFailed, Group
from .largest import over_all
from .making import Unusable
from .point import Point
from .scale import Exponents, rule, unknown
from .watch import Watch

CHUNK = 1 << 20
"""Lanes of one collective, 8 MiB: while one is under way, the one before becomes floats."""
EXPLAIN = 1.0
"""Seconds that a failed collective waits for its cause to show: a link that ends, or a newer world."""
ATTEMPTS = 3
"""Collectives in a row that may fail although no link broke and the world stayed, until the run fails with them."""
FAREWELL = 2.0
"""Seconds that the end of a session waits for groups to be gone."""
_UNTOLD = np.iinfo(np.int32).min
"""What a worker tells that has no bounds of its own: it has no slots in this step."""


class Meet(Protocol):
    """Makes the group of a generation; see `gloo.GlooGroup.meet`."""

    def __call__(self, rank: int, size: int, *, previous: Link, following: Link, watch: Watch) -> Group:
        """Make it together with all members of the ring."""


class Collective:
    """See `port.Transport`.

    Args:
        point: counts slots.
        bounds: the training's bounds.
        meet: makes a group.
        moved: True once a newer world exists.
    """

    def __init__(self, point: Point, bounds: Bounds, meet: Meet, moved: Callable[[], bool]) -> None:
        self._point = point
        self._bounds = bounds
        self._meet = meet
        self._moved = moved
        self._previous: Link | None = None
        self._group: Group | None = None
        self._watch: Watch | None = None
        self._left: list[Group] = []
        self._failures = 0

    # --------------------------------------------------------------------------------------------------- one step

    def reduce(self, work: Reduction) -> tuple[Settled, int]:
        """See `port.Transport`."""
        try:
            self._enter(work)
            with self._point.at_work():
                extent = self._sum(work)
        except CollectiveFailed as failed:
            self._explain(failed)
            raise AssertionError from failed  # it raises
        except BaseException:
            self._leave()
            raise
        self._failures = 0
        digest = xxhash.xxh3_64(work.chain.to_bytes(8, "little"))
        digest.update(work.result.data)
        work.doubt = bool(extent.special.any())
        return work.conclude(digest)

    def _sum(self, work: Reduction) -> Extent:
        point, lanes = self._point, self._point.lanes
        own = work.own()
        expected = self._bounds.exponents if own else None
        first = work.where.place == 0 and bool(own)
        known = expected if expected is not None else unknown(lanes.buckets)
        extent = point.count(own, known, covered=work.where.own, raw=first)
        expected, extent = self._tell(work, expected, extent)
        ruling = rule(lanes.buckets, expected, extent.seen)
        point.count_again(own, ruling, extent.special)
        codes = point.codes(own, extent.special)
        under_way = [(last, self._start(part)) for last, part in self._parts()]
        begun = 0
        for last, finish in under_way:
            finish()
            point.write(work.result, ruling.bounds, begun, last)
            begun = last
        if point.covered() != work.slots:
            raise LinkBroken(
                "previous",
                f"protocol: step {work.step} was added up over {point.covered()} slots, not {work.slots}",
            )
        if len(codes):
            self._start(codes)()
        point.write_rest(work.result, extent.special, codes)
        self._bounds.write(work.result, ruling.following)
        return extent

    def _parts(self) -> list[tuple[int, torch.Tensor]]:
        """The lanes in parts of about `CHUNK`, each with the number of the first block after it."""
        lanes, whole = self._point.lanes, self._point.integers
        parts, start = [], 0
        for number, block in enumerate(lanes.blocks):
            if block.lane - start >= CHUNK:
                parts.append((number, whole[start : block.lane]))
                start = block.lane
        parts.append((len(lanes.blocks), whole[start:]))
        return parts

    def _tell(self, work: Reduction, bounds: Exponents | None, extent: Extent) -> tuple[Exponents, Extent]:
        """Everybody's largest elements, and the bounds of those who have them; these must be equal.

        Raises:
            Diverged: they are not.
        """
        count = len(extent.seen)
        told = np.full((4, count), _UNTOLD, dtype=np.int32)
        told[0], told[1] = extent.seen, extent.special
        if bounds is not None:
            told[2], told[3] = bounds, -bounds
        heard = over_all(work.where, work.previous, work.following, work.step, told.reshape(-1))
        seen, special, most, least = heard.reshape(4, count)
        if (most != -least).any():
            raise Diverged(f"workers hold different bounds before step {work.step}: their states differ")
        return most, Extent(seen, special)

    def _start(self, tensor: torch.Tensor) -> Callable[[], None]:
        """Begin a collective; what is returned waits for it. A world of one has nothing to do."""
        group, watch = self._group, self._watch
        if group is None or watch is None:
            return _nothing
        work = group.start(tensor, watch.ring)

        def finish() -> None:
            watch.until(lambda: work.done, pace=group.pace)
            work.check()

        return finish

    # ------------------------------------------------------------------------------------------------- generations

    def _enter(self, work: Reduction) -> None:
        """Make the group of the links that the work comes with, if it is not made yet."""
        if work.previous is self._previous and (work.previous is None or self._group is not None):
            return
        self._leave()
        self._bury(0.0)
        if self._left:
            self._point.renew()  # some collective given up may still write to it
        self._previous = work.previous
        if work.previous is None or work.following is None:
            return
        self._watch = Watch(work.previous, work.following, self._moved)
        self._group = self._meet(
            work.where.place, work.where.size, previous=work.previous, following=work.following, watch=self._watch
        )

    def _leave(self) -> None:
        """Give up the group."""
        if self._group is not None:
            self._group.close()
            self._left.append(self._group)
        if self._watch is not None:
            self._watch.close()
        self._group = self._watch = self._previous = None
        self._point.quiet()

    def _explain(self, failed: CollectiveFailed) -> None:
        """A collective failed because some member is gone, not always a neighbour: the links or the world tell who.

        Raises:
            LinkBroken: a link has ended; or nothing shows, and the ring is linked anew.
            WorldMoved: a newer world arrived.
            Unusable: nothing shows, again and again: the members reach each other over TCP, but not in this way.
        """
        try:
            if self._watch is not None:
                self._watch.until(lambda: False, EXPLAIN)
        finally:
            self._leave()
        self._failures += 1
        if self._failures >= ATTEMPTS:
            raise Unusable(
                f"{self._failures} collectives in a row failed while all links hold; the last one: {failed}",
                hint="is a firewall between the nodes? The library uses ports of its own, --transport tcp does not",
            ) from failed
        raise LinkBroken("previous", f"collective: {failed}") from failed

    def _bury(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self._left = [g for g in self._left if not g.closed(max(0.0, deadline - time.monotonic()))]

    def close(self) -> None:
        """See `port.Transport`; waits a little for what groups hold to be freed."""
        self._leave()
        self._bury(FAREWELL)


def _nothing() -> None:
    """There is nobody to wait for."""
