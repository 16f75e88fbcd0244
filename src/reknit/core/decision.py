"""What a reducer is told and what it answers. No clock, no chance, no I/O: reducers import this one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from reknit.core.events import AnyEvent, AnyPulse, Event

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed."""


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection to the broker ended."""

    client_id: int
    name: str


@dataclass(frozen=True, slots=True)
class Told:
    """One input of a reducer.

    Attributes:
        job: whose.
        event: what was said; or that time passed, or that a connection ended (both are told to every job).
        now: when this service heard it, seconds by its own monotonic clock.
        seq: place in the log, 0 for what is not on the log.
        live: False while the log is read at the start: what is asked for then is dropped.
        trace: traceparent of the event, or "".
        id: the event's id, "" for what is not on the log.
        source: who said it, "" for what is not on the log.
        wall: when it was said by the speaker's clock, seconds since the epoch: for people only; 0 off the log.
        at: seconds since the epoch by the broker's clock: of the log, when it was stored, which every reader of the log
            is told alike; of everything else, what that clock shows now as far as we know.
    """

    job: str
    event: AnyEvent | AnyPulse | Tick | Disconnected
    now: float
    seq: int = 0
    live: bool = True
    trace: str = ""
    id: str = ""
    source: str = ""
    wall: float = 0.0
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class Out:
    """A publication asked for.

    Attributes:
        event: what to say.
        id: names the decision: asked for twice with one id, by this or another process, it is stored once.
        expect_last: store only if this is the newest sequence of events of this kind in the job (0: none yet).
        trace: traceparent of what it follows from; "": of the input.
        within: seconds for which it is worth saying: what was seen at this moment may be taken back. None: any time.
    """

    event: Event
    id: str
    expect_last: int | None = None
    trace: str = ""
    within: float | None = None


@dataclass(frozen=True, slots=True)
class Decision(Generic[S]):
    """What a reducer makes of one input.

    Attributes:
        state: the state from now on.
        out: publications asked for.
        reason: why, in words, for the service's own log.
        do: actions asked for, the service's own (frozen, hashable) dataclasses; done one after another, by `act`.
        wake: seconds until this job wants a tick of its own, before the next regular one; None: no need.
    """

    state: S
    out: tuple[Out, ...] = ()
    reason: str = ""
    do: tuple[Any, ...] = ()
    wake: float | None = None
