"""What the reducer asks the app to do, in order."""

from __future__ import annotations

from dataclasses import dataclass

from reknit.core.events import AnyEvent

from .state import State


@dataclass(frozen=True, slots=True)
class Fork:
    """Make a process for a worker id, once what its last process left behind is gone."""

    worker: str
    attempt: int
    last_incarnation: int
    behind: bool = False
    """Others train already: it stands back until it is one of them."""


@dataclass(frozen=True, slots=True)
class AskToLeave:
    """SIGTERM to the worker process alone: its own children still have to serve it."""

    worker: str


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL to the worker and all that belongs to it."""

    worker: str


@dataclass(frozen=True, slots=True)
class Watch:
    """Be told at once when the worker's process ends."""

    worker: str


@dataclass(frozen=True, slots=True)
class Post:
    """Put an event on the log, through the outbox."""

    event: AnyEvent
    id: str


@dataclass(frozen=True, slots=True)
class Say:
    """A line for people, on stderr."""

    text: str


@dataclass(frozen=True, slots=True)
class End:
    """The agent's work is done."""

    code: int
    last_words: str = ""


Action = Fork | AskToLeave | Kill | Watch | Post | Say | End


@dataclass(frozen=True, slots=True)
class Decision:
    """The next state and what to do."""

    state: State
    do: tuple[Action, ...] = ()

    def then(self, *do: Action) -> Decision:
        """Return this decision with more to do."""
        return Decision(self.state, self.do + do)

    def onto(self, before: tuple[Action, ...]) -> Decision:
        """Return this decision with something to do first."""
        return Decision(self.state, before + self.do)
