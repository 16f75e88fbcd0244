"""One statement about one member, and which of two statements is newer.

A member's state is a register that only grows: (epoch, incarnation, state), compared in this order. Epoch is the start
of its process; incarnation is raised by the member alone, to refute; of two statements of one incarnation the worse one
wins. So two views merge by taking the greater statement of each member, in any order and any number of times.
"""

from __future__ import annotations

import enum

import msgspec
import xxhash

from reknit.core.address import Address


class State(enum.IntEnum):
    """What is said of a member, the stronger statement last."""

    ALIVE = 0
    SUSPECT = 1
    DEAD = 2
    LEFT = 3


class Rumour(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A statement about a member.

    Attributes:
        name: the member.
        epoch: number of its process, greater for a later one of its name, or at its address.
        incarnation: how often this process has refuted.
        state: a `State`.
        host: where it listens.
        port: where it listens.
        by: who says so.
    """

    name: str
    epoch: int
    incarnation: int
    state: int
    host: str
    port: int
    by: str = ""

    @property
    def address(self) -> Address:
        """Where the member listens."""
        return self.host, self.port

    @property
    def rank(self) -> tuple[int, int, int]:
        """What decides which of two statements holds."""
        return self.epoch, self.incarnation, self.state

    @property
    def present(self) -> bool:
        """True if the member is there, suspected or not."""
        return self.state <= State.SUSPECT

    @property
    def size(self) -> int:
        """Bytes it takes in a packet, at most; names of nodes are ASCII."""
        return len(self.name) + len(self.host) + len(self.by) + 32

    def digest(self) -> int:
        """64 bits of who is there and in which life; 0 for who is not.

        Suspicion is left out: it comes and goes, and views shall be compared by what lasts.
        """
        if not self.present:
            return 0
        return xxhash.xxh3_64_intdigest(f"{self.name}/{self.epoch}/{self.incarnation}/{self.host}/{self.port}".encode())


def said(of: Rumour, state: State, by: str) -> Rumour:
    """Return what `by` says of a member in the life and incarnation of `of`."""
    return Rumour(of.name, of.epoch, of.incarnation, int(state), of.host, of.port, by)


def newer(rumour: Rumour, than: Rumour | None) -> bool:
    """True if it holds instead of the other one."""
    return than is None or rumour.rank > than.rank
