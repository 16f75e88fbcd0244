"""The kinds of evidence, as one table: what each says, how much it weighs, and what takes it back.

The rule over the table: **one certain observation, or two from different channels, means dead; one alone means
suspect.** Two kinds that come through the same channel are one: a worker whose broker connection is cut is silent
*and* disconnected, which is one fact seen twice, and it may train on in good health.

A new source is one more row here and one more line in `verdict` that finds it.
`docs()` is the table as Markdown; the documentation is made from it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal, TypeAlias

from reknit.core.events import Evidence

Source: TypeAlias = Literal[
    "exit",
    "dying",
    "refused",
    "leave",
    "join",
    "asked",
    "disconnect",
    "heartbeat",
    "unreachable",
    "ring",
    "progress",
    "frozen",
    "gossip",
]
Channel: TypeAlias = Literal["process", "broker", "dial", "ring", "work", "kernel", "peers"]


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One row of the table.

    Attributes:
        source: name of the kind, as in `Evidence.source`.
        channel: the path it was seen through; only different channels count as independent.
        certain: True if one observation is enough.
        seen_by: who observes it.
        means: what it says, in words.
        latency: how long after the fault it is known, as measured or derived.
        cleared: what takes it back.
    """

    source: Source
    channel: Channel
    certain: bool
    seen_by: str
    means: str
    latency: str
    cleared: str


KINDS: dict[Source, Kind] = {
    kind.source: kind
    for kind in (
        Kind("exit", "process", True, "the agent", "the process was reaped, or its script raised", "2 ms", "never"),
        Kind(
            "dying",
            "process",
            True,
            "the agent, or its guard when the agent itself is gone",
            "the kernel has begun to end the process, its memory is not freed yet",
            "0.5 ms after SIGKILL",
            "never",
        ),
        Kind(
            "refused",
            "process",
            True,
            "membership, dialling",
            "nobody listens at the worker's address any more",
            "5 ms after a disconnect",
            "never",
        ),
        Kind("leave", "process", True, "the agent", "the agent left; its workers ended before it", "at once", "never"),
        Kind(
            "join",
            "process",
            True,
            "another registration",
            "a newer incarnation has the name, or another worker has the address",
            "at once",
            "never",
        ),
        Kind(
            "disconnect",
            "broker",
            False,
            "the broker",
            "the connection to the broker ended; the address is dialled at once",
            "4 ms after SIGKILL",
            "the next heartbeat",
        ),
        Kind(
            "heartbeat",
            "broker",
            False,
            "membership",
            "heartbeats are missing (phi of 8 or more) while others are heard",
            "1.3 s",
            "the next heartbeat",
        ),
        Kind(
            "unreachable",
            "dial",
            False,
            "membership, dialling",
            "the address does not answer at all: host or path is gone",
            "0.5 s after the hint",
            "the next heartbeat",
        ),
        Kind(
            "ring",
            "ring",
            False,
            "ring neighbours",
            "the ring link to it broke and it has not said so itself",
            "1 to 25 ms",
            "its own report or heartbeat, or the next world",
        ),
        Kind(
            "gossip",
            "peers",
            False,
            "the node's neighbours",
            "enough of those that watch its node get no answer from it, while its heartbeats are late too (phi of 2)",
            "1.0 to 1.5 s; fast: 0.55 to 0.8 s",
            "the next answer, or the next heartbeat",
        ),
        Kind(
            "progress",
            "work",
            False,
            "membership",
            "others wait in the ring for a step that it does not finish",
            "`stuck_after`; 1 s if its node is silent too",
            "its next step or phase",
        ),
        Kind(
            "frozen",
            "kernel",
            False,
            "the agent",
            "the kernel says the process is stopped or uninterruptible",
            "0.5 s",
            "the kernel says it runs, or its next heartbeat",
        ),
    )
}
"""Source -> its row. `progress` alone is enough once it has lasted `stuck_after` (then it comes marked certain)."""


def observe(source: Source, about: str, observer: str, detail: str, *, certain: bool | None = None) -> Evidence:
    """Make an `Evidence` of a kind; `certain` overrides the table's weight (a stuck worker after `stuck_after`)."""
    weight = KINDS[source].certain if certain is None else certain
    return Evidence(about=about, source=source, observer=observer, detail=detail, certain=weight)


def is_proof(evidence: Iterable[Evidence]) -> bool:
    """Return True if this evidence about one worker means that it is dead."""
    channels: set[Channel] = set()
    for item in evidence:
        if item.certain:
            return True
        if item.source in KINDS:
            channels.add(KINDS[item.source].channel)
    return len(channels) >= 2


def docs() -> str:
    """Return the table as Markdown."""
    head = ("evidence", "channel", "weight", "seen by", "says", "known after", "taken back by")
    rows = [head, ("---",) * len(head)]
    rows += [
        (k.source, k.channel, "certain" if k.certain else "one kind", k.seen_by, k.means, k.latency, k.cleared)
        for k in KINDS.values()
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
