"""Who measures which micro-batches of an evaluation; pure.

What is missing is cut into contiguous shares, one a member in ring order. A member works through its own from the
front; when it is done it helps, from the back of the shares of others, so that two meet in the middle. Nobody agrees
on anything: who measures a micro-batch twice gets the same value, and only idle time is spent.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Container, Sequence


def cut(missing: Sequence[int], members: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Cut into contiguous shares whose sizes differ by one at most; some are empty if there are more members."""
    size, extra = divmod(len(missing), len(members))
    shares, at = {}, 0
    for place, member in enumerate(members):
        end = at + size + (place < extra)
        shares[member] = tuple(missing[at:end])
        at = end
    return shares


class Shares:
    """What each member has left, as one of them sees it.

    Args:
        missing: micro-batches without a score, ascending.
        members: in ring order.
        me: who asks; may be no member, then it only helps.
    """

    def __init__(self, missing: Sequence[int], members: Sequence[str], me: str) -> None:
        self._left = {m: collections.deque(share) for m, share in cut(missing, members).items()}
        self._own = self._left.pop(me, collections.deque())
        # the others, beginning with the one after us: so helpers do not all begin with the same one
        place = list(members).index(me) + 1 if me in members else 0
        self._others = [m for m in (*members[place:], *members[:place]) if m != me]

    def next(self, done: Container[int], is_late: Callable[[str], bool]) -> int | None:
        """Return what to measure next, None if there is nothing to do at present.

        Args:
            done: measured, or being measured here.
            is_late: True if nothing came from this member for so long that even the last of its share, which it is
                measuring now, should be measured by somebody else as well.
        """
        _strip(self._own, done)
        if self._own:
            return self._own.popleft()
        helped: tuple[int, int, str] | None = None
        for distance, member in enumerate(self._others):
            left = self._left[member]
            _strip(left, done)
            if left and (len(left) > 1 or is_late(member)) and (helped is None or len(left) > helped[0]):
                helped = (len(left), distance, member)
        return self._from_the_back(self._left[helped[2]], helped[1], done) if helped is not None else None

    def _from_the_back(self, left: collections.deque[int], distance: int, done: Container[int]) -> int:
        """Take one out; helpers at other distances take another one. Its first is not done, so there is one."""
        at = len(left) - 1 - distance % max(1, len(left) - 1)
        while left[at] in done:
            at -= 1
        number = left[at]
        del left[at]
        return number


def _strip(left: collections.deque[int], done: Container[int]) -> None:
    while left and left[0] in done:
        left.popleft()
    while left and left[-1] in done:
        left.pop()
