"""Send the furthest result round again after a break, for the members that lack it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from reknit.core import wire
from reknit.core.errors import WireError
from reknit.core.events import Range

from . import control
from .control import Settled
from .frames import Kind
from .link import Link, LinkBroken
from .pieces import Buffer, Piece


@dataclasses.dataclass(frozen=True, slots=True)
class Committed:
    """What is known of a committed step besides its sum.

    Attributes:
        step, generation: the step, and the generation in which it was completed.
        owners: who computed which slots.
        settled: what the step agreed on.
        chain: result chain after it.
        computed_again: slots that had been orphaned in it.
    """

    step: int
    generation: int
    owners: tuple[Range, ...]
    settled: Settled
    chain: int
    computed_again: int


def send(following: Link, committed: Committed, buffer: Buffer, cut: Sequence[Piece]) -> int:
    """Send a result as its donor; returns the last ticket."""
    payload = pack(committed)
    ticket = following.send(Kind.RESEND, committed.step, 0, 0, payload)
    for number, piece in enumerate(cut, 1):
        ticket = following.send(Kind.RESEND, committed.step, number, 0, buffer.data[piece.start : piece.end])
    return ticket


def receive(
    previous: Link, following: Link | None, step: int, cut: Sequence[Piece], buffer: Buffer
) -> tuple[Committed, int]:
    """Receive the result of `step` into `buffer` and pass it on.

    Returns:
        What is known of the step, and the last ticket on `following`.

    Raises:
        LinkBroken: the previous worker is gone or broke the protocol.
    """
    committed: Committed | None = None
    ticket = 0
    for number in range(len(cut) + 1):
        header = previous.receive_header()
        if header.kind is not Kind.RESEND or header.step != step or header.piece != number:
            raise LinkBroken("previous", f"protocol: {header} while piece {number} of result {step} was due")
        if number == 0:
            payload = previous.receive_payload(header)
            committed = _committed(step, payload)
            view: memoryview | bytes = payload
        else:
            piece = cut[number - 1]
            view = buffer.data[piece.start : piece.end]
            if header.length != len(view):
                raise LinkBroken("previous", f"protocol: {header.length} bytes, {len(view)} were due")
            previous.receive_into(view)
        if following is not None:
            ticket = following.send(Kind.RESEND, step, number, 0, view)
    assert committed is not None
    return committed, ticket


def pack(committed: Committed) -> bytes:
    """Bytes of what is known of a committed step."""
    return wire.pack(
        [
            committed.step,
            committed.generation,
            control.ranges_to_plain(committed.owners),
            control.encode(committed.settled),
            committed.chain,
            committed.computed_again,
        ]
    )


def unpack(data: bytes) -> Committed:
    """Decode `pack`.

    Raises:
        WireError: the bytes do not fit.
    """
    try:
        step, generation, owners, settled, chain, again = wire.unpack(data)
        decoded = control.decode(settled)
        if not isinstance(decoded, Settled):
            raise WireError("wishes where a settled control piece was due")
        return Committed(int(step), int(generation), control.ranges_from_plain(owners), decoded, int(chain), int(again))
    except (TypeError, ValueError) as error:
        raise WireError(f"committed step does not fit: {error}") from error


def _committed(step: int, payload: bytes) -> Committed:
    try:
        committed = unpack(payload)
    except WireError as error:
        raise LinkBroken("previous", f"result sent again: {error}") from error
    if committed.step != step:
        raise LinkBroken("previous", f"protocol: result of step {committed.step}, {step} was due")
    return committed
