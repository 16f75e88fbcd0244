"""The number that tells two processes of one worker id apart, and which of them is the younger."""

from __future__ import annotations


def next_incarnation(wall_ms: int, attempt: int, last: int) -> int:
    """Return `wall_ms << 8 | attempt & 255`, or `last + 1` should the wall clock have been set back.

    Args:
        wall_ms: wall clock at the fork, milliseconds.
        attempt: how many processes of this worker id the agent forked before.
        last: newest incarnation known of this worker id, 0 for none.
    """
    return max((wall_ms << 8) | (attempt & 255), last + 1)
