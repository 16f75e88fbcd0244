"""Frames that no honest neighbour sends: refused, whatever place this worker has, and nothing of them is used."""

from __future__ import annotations

import numpy as np
import pytest

from reknit.worker.ring.control import Settled, Wishes
from reknit.worker.ring.frames import Kind
from reknit.worker.ring.link import LinkBroken
from reknit.worker.ring.pieces import Piece
from reknit.worker.ring.reduction import Reduction, Route
from support.links import linked

CUT = (Piece("f4", 0, 16), Piece("f4", 16, 32))
STEP = 7
FIRST, MIDDLE, LAST = Route(0, 2, 3, 0, 1), Route(1, 2, 3, 1, 1), Route(2, 2, 3, 2, 1)


@pytest.mark.parametrize(
    ("where", "kind", "piece", "coverage", "step", "size"),
    [
        (LAST, Kind.FINAL, 0, 3, STEP, 16),  # it makes the result itself
        (FIRST, Kind.REDUCE, 0, 0, STEP, 16),  # it begins the sum itself
        (FIRST, Kind.REDUCE, 3, 0, STEP, 16),
        (MIDDLE, Kind.REDUCE, 1, 1, STEP, 16),  # out of order
        (MIDDLE, Kind.REDUCE, 0, 2, STEP, 16),  # covers slots that are ours
        (MIDDLE, Kind.REDUCE, 0, 1, STEP - 1, 16),
        (MIDDLE, Kind.REDUCE, 0, 1, STEP, 12),
        (MIDDLE, Kind.FINAL, 0, 2, STEP, 16),  # covers too little to be a result
        (MIDDLE, Kind.TOKEN, 0, 1, STEP, 16),
    ],
)
def test_a_frame_that_is_not_due_is_refused(
    where: Route, kind: Kind, piece: int, coverage: int, step: int, size: int
) -> None:
    before, mine = linked(lanes=False)
    onward, behind = linked(lanes=False)
    try:
        before.send(kind, step, piece, coverage, bytes(size))
        result = np.full(32, 7, np.uint8)
        reduction = Reduction(
            step=STEP,
            slots=3,
            cut=CUT,
            where=where,
            previous=mine,
            following=onward,
            result=result,
            chain=1,
            own=lambda: [np.zeros(32, np.uint8)],
            wishes=Wishes,
            settle=lambda _wishes: Settled(),
        )
        with pytest.raises(LinkBroken, match="protocol"):
            reduction.run()
        if where is not FIRST:  # who begins has begun
            assert (result == 7).all()
    finally:
        for link in (before, mine, onward, behind):
            link.close()
