"""What is to be said of a node whose agent ends without a word: left with its guard, who says it.

    agent:  will = LastWill.write(endpoint, job, node)   ── in the environment ──►   guard:  found(agent, text)
            will.arrived(seq)                                                                Executor(…).start()

The kernel closes the connection of an agent that is killed after it has freed the process's memory, and so with the
workers that die at the same time: tens of milliseconds until somebody who dials them is refused. The guard waits for
the agent's lifeline instead, says that all of the node is gone, and sees to it: some milliseconds.
"""

from __future__ import annotations

import os
from typing import Self

import msgspec

from reknit.core.context import Endpoint

from .lifeline import Lifeline


class Text(msgspec.Struct, frozen=True, kw_only=True):
    """The will as the guard reads it."""

    endpoint: Endpoint
    job: str
    node: str
    line: int
    """The agent's descriptor of its lifeline."""


class LastWill:
    """The agent's side. To be written by its main thread, whose end is the end of the process."""

    def __init__(self, text: Text, line: Lifeline) -> None:
        self._text = text
        self._line = line

    @classmethod
    def write(cls, endpoint: Endpoint, job: str, node: str) -> Self | None:
        """Write it; None where this machine has no lifelines: then the broker and who dials the workers tell."""
        try:
            line = Lifeline.make()
            line.hold()
        except OSError:
            return None
        return cls(Text(endpoint=endpoint, job=job, node=node, line=line.fileno()), line)

    def arrived(self, seq: int) -> None:
        """From now on it counts: of the agent whose `node.joined` has this sequence."""
        self._line.note = seq

    @property
    def text(self) -> str:
        """For the guard's environment."""
        return msgspec.json.encode(self._text).decode()


def found(agent: int, text: str) -> tuple[Text, Lifeline] | None:
    """Read a will and take the other end of the agent's lifeline; None if that cannot be had.

    Args:
        agent: its pid.
        text: the will.
    """
    try:
        will = msgspec.json.decode(text, type=Text)
        line = Lifeline(os.open(f"/proc/{agent}/fd/{will.line}", os.O_RDWR | os.O_CLOEXEC))
    except (OSError, msgspec.MsgspecError):
        return None
    line.sent()
    return will, line
