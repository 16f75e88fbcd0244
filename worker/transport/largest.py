"""The larger of each number over all workers, two laps round the ring's own links; then all are ready to add up.

It is small, so the links are as good as a collective. And whoever returns knows that every worker has counted its
slots: a collective begun now waits for no computing peer, so one that does not get on has lost somebody.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from reknit.worker.ring.frames import Kind
from reknit.worker.ring.link import Link, LinkBroken
from reknit.worker.ring.reduction import Route

Numbers = npt.NDArray[np.int32]


def over_all(where: Route, previous: Link | None, following: Link | None, step: int, mine: Numbers) -> Numbers:
    """Merge everybody's numbers, of equal count.

    Args:
        where: this worker's route; places count, slots do not.
        previous: link to the previous worker, None in a world of one.
        following: link to the next worker, None in a world of one.
        step: of the reduction; all must be at the same one.
        mine: this worker's.

    Raises:
        LinkBroken: a neighbour is gone or broke the protocol.
    """
    if previous is None or following is None:
        return mine
    last = where.size - 1
    if where.place > 0:
        mine = np.maximum(mine, _receive(previous, 1, step, mine.nbytes))
    if where.place < last:
        _send(following, 1, step, mine)
        mine = _receive(previous, 2, step, mine.nbytes)
    if where.place != last - 1:
        _send(following, 2, step, mine)
    return mine


def _send(link: Link, lap: int, step: int, numbers: Numbers) -> None:
    link.send(Kind.TOKEN, step, lap, 0, numbers.tobytes())


def _receive(link: Link, lap: int, step: int, size: int) -> Numbers:
    header = link.receive_header()
    if (header.kind, header.step, header.piece, header.length) != (Kind.TOKEN, step, lap, size):
        raise LinkBroken(
            "previous", f"protocol: {header} while lap {lap} of step {step} with {size} bytes of largest was due"
        )
    return np.frombuffer(link.receive_payload(header), dtype=np.int32)
