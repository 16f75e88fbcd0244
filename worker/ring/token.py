"""Two laps of a token: lap 1 collects one item a member, lap 2 gives everybody all items."""

from __future__ import annotations

from typing import Any

from reknit.core import wire
from reknit.core.errors import WireError

from .frames import Kind
from .link import Link, LinkBroken


def circulate(place: int, size: int, previous: Link | None, following: Link | None, item: Any) -> list[Any]:
    """Exchange one plain value a member.

    Args:
        place: this worker's place in ring order.
        size: members in the ring.
        previous: link to the previous worker, None in a world of one.
        following: link to the next worker, None in a world of one.
        item: this worker's value (plain: what `wire.pack` takes).

    Returns:
        All values in ring order.

    Raises:
        LinkBroken: a neighbour is gone or broke the protocol.
    """
    if size == 1 or previous is None or following is None:
        return [item]
    if place == 0:
        _send(following, 1, [item])
        everything = _receive(previous, 1, size)
        _send(following, 2, everything)
        return everything
    _send(following, 1, [*_receive(previous, 1, place), item])
    everything = _receive(previous, 2, size)
    if place < size - 1:
        _send(following, 2, everything)
    return everything


def _send(link: Link, lap: int, items: list[Any]) -> None:
    link.send(Kind.TOKEN, 0, lap, len(items), wire.pack(items))


def _receive(link: Link, lap: int, count: int) -> list[Any]:
    header = link.receive_header()
    if header.kind is not Kind.TOKEN or header.piece != lap:
        raise LinkBroken("previous", f"protocol: {header} while the token of lap {lap} was due")
    try:
        items = wire.unpack(link.receive_payload(header))
    except WireError as error:
        raise LinkBroken("previous", str(error)) from error
    if not isinstance(items, list) or len(items) != count:
        raise LinkBroken("previous", f"protocol: token of lap {lap} does not hold {count} entries")
    return items
