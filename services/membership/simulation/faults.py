"""What can go wrong, as lines a person can read and write.

    at 5 crash 25% power
    at 10 part 30% for 20
    at 3 lossy 1% 80% for 20

A line is: moment, verb, how many (a number or a share of the nodes that are well), what else the verb wants, and for
how long. `VERBS` is the whole language; `docs()` is the table. A fault that lasts ends by itself.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .cluster import Cluster
    from .node import Node


@dataclasses.dataclass(frozen=True, slots=True)
class Fault:
    """One line.

    Attributes:
        at: seconds from the beginning.
        verb: what happens.
        words: what the verb wants, as written.
        seconds: how long it lasts, None where that makes no sense.
    """

    at: float
    verb: str
    words: tuple[str, ...] = ()
    seconds: float | None = None

    def __str__(self) -> str:
        """The line."""
        lasts = "" if self.seconds is None else f" for {self.seconds:g}"
        return " ".join([f"at {self.at:g} {self.verb}", *self.words]) + lasts

    @property
    def ends(self) -> float:
        """When it is over, but for what follows from it."""
        return self.at + (self.seconds or 0.0)


def parse(line: str) -> Fault:
    """Read one line.

    Raises:
        ValueError: it is no fault; the text says why.
    """
    words = line.split()
    if len(words) < 3 or words[0] != "at":
        raise ValueError(f"not a fault: {line!r} (at SECONDS VERB …)")
    seconds = None
    if len(words) > 4 and words[-2] == "for":
        seconds = float(words[-1])
        words = words[:-2]
    verb = words[2]
    if verb not in VERBS:
        raise ValueError(f"no such fault: {verb!r}; there are {', '.join(VERBS)}")
    wanted = VERBS[verb]
    if len(words) - 3 != len(wanted.words):
        raise ValueError(f"{verb} wants: {' '.join(wanted.words) or 'nothing'}; the line is {line!r}")
    if (seconds is not None) < wanted.lasts:
        raise ValueError(f"{verb} wants: for SECONDS; the line is {line!r}")
    return Fault(float(words[1]), verb, tuple(words[3:]), seconds)


def share(word: str) -> float:
    """Read a share: `5%` is 0.05."""
    return float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)


def inflict(cluster: Cluster, fault: Fault) -> None:
    """Let it happen now."""
    cluster.note(f"fault: {fault}")
    VERBS[fault.verb].act(cluster, fault)


def _drawn(cluster: Cluster, fault: Fault) -> list[Node]:
    word = fault.words[0]
    number = round(share(word) * len(cluster.nodes)) if word.endswith("%") else int(word)
    nodes = cluster.draw(max(1, number))
    cluster.note(f"  {' '.join(n.name for n in nodes)}")
    return nodes


def _seconds(fault: Fault) -> float:
    return fault.seconds if fault.seconds is not None else 0.0


def _crash(cluster: Cluster, fault: Fault) -> None:
    cluster.crash(_drawn(cluster, fault), "killed" if fault.words[1] == "killed" else "power")


def _worker_kill(cluster: Cluster, fault: Fault) -> None:
    for node in _drawn(cluster, fault):
        cluster.kill_worker(node)


def _restart(cluster: Cluster, fault: Fault) -> None:
    nodes = _drawn(cluster, fault)
    cluster.crash(nodes, "killed" if fault.words[1] == "killed" else "power")
    cluster.clock.after(_seconds(fault), cluster.restart, nodes)


def _boot(cluster: Cluster, _fault: Fault) -> None:
    cluster.restart([node for node in cluster.nodes if not node.up])


def _rolling(cluster: Cluster, fault: Fault) -> None:
    nodes, every = _drawn(cluster, fault), float(fault.words[1])
    for i, node in enumerate(nodes):
        cluster.clock.after(i * every, cluster.crash, [node], "killed")
        cluster.clock.after(i * every + _seconds(fault), cluster.restart, [node])


def _freeze(cluster: Cluster, fault: Fault) -> None:
    cluster.freeze(_drawn(cluster, fault), _seconds(fault))


def _loss(cluster: Cluster, fault: Fault) -> None:
    before = cluster.network.loss
    cluster.network.loss = share(fault.words[0])
    if fault.seconds is not None:
        cluster.clock.after(fault.seconds, setattr, cluster.network, "loss", before)


def _duplicate(cluster: Cluster, fault: Fault) -> None:
    cluster.network.duplication = share(fault.words[0])
    if fault.seconds is not None:
        cluster.clock.after(fault.seconds, setattr, cluster.network, "duplication", 0.0)


def _reorder(cluster: Cluster, fault: Fault) -> None:
    cluster.network.reorder = share(fault.words[0])
    if fault.seconds is not None:
        cluster.clock.after(fault.seconds, setattr, cluster.network, "reorder", 0.0)


def _starve(cluster: Cluster, fault: Fault) -> None:
    cluster.starve(_drawn(cluster, fault), fault.seconds)


def _wall(cluster: Cluster, fault: Fault) -> None:
    cluster.wall_off(_drawn(cluster, fault), _seconds(fault), "in" if fault.words[1] == "in" else "out")


def _flip(cluster: Cluster, fault: Fault) -> None:
    nodes, every = _drawn(cluster, fault), float(fault.words[2])
    direction = "in" if fault.words[1] == "in" else "out"
    for i in range(max(1, int(_seconds(fault) / (2 * every)))):
        cluster.clock.after(2 * i * every, cluster.wall_off, nodes, every, direction)


def _lossy(cluster: Cluster, fault: Fault) -> None:
    cluster.lose_on_the_way_in(_drawn(cluster, fault), share(fault.words[1]), _seconds(fault))


def _mute(cluster: Cluster, fault: Fault) -> None:
    cluster.mute(_drawn(cluster, fault), _seconds(fault))


def _part(cluster: Cluster, fault: Fault) -> None:
    cluster.part(_drawn(cluster, fault), _seconds(fault))


def _outage(cluster: Cluster, fault: Fault) -> None:
    cluster.outage(_seconds(fault))


def _jump(cluster: Cluster, fault: Fault) -> None:
    for node in _drawn(cluster, fault):
        node.skew += float(fault.words[1])


def _hub_kill(cluster: Cluster, fault: Fault) -> None:
    hub = cluster.hubs[int(fault.words[0]) % len(cluster.hubs)]
    hub.kill()
    cluster.clock.after(_seconds(fault), hub.start)


def _hub_stop(cluster: Cluster, fault: Fault) -> None:
    hub = cluster.hubs[int(fault.words[0]) % len(cluster.hubs)]
    if hub.running:
        hub.stop()
        cluster.clock.after(_seconds(fault), hub.resume)


@dataclasses.dataclass(frozen=True, slots=True)
class Verb:
    """One kind of fault.

    Attributes:
        words: what stands behind it.
        lasts: `for SECONDS` must be said.
        means: what it does.
        act: does it.
    """

    words: tuple[str, ...]
    lasts: bool
    means: str
    act: Callable[[Cluster, Fault], None]


VERBS: dict[str, Verb] = {
    "crash": Verb(("COUNT", "power|killed"), False, "hosts vanish, or all their processes are killed", _crash),
    "restart": Verb(("COUNT", "power|killed"), True, "the same, and they boot again under their names after", _restart),
    "boot": Verb((), False, "all that are down boot again under their names", _boot),
    "rolling": Verb(("COUNT", "EVERY"), True, "one after the other is killed and boots again after", _rolling),
    "worker-kill": Verb(("COUNT",), False, "worker processes are killed, their agents live", _worker_kill),
    "freeze": Verb(("COUNT",), True, "all processes of nodes are stopped", _freeze),
    "loss": Verb(("SHARE",), False, "so much is lost on every path", _loss),
    "duplicate": Verb(("SHARE",), False, "so many datagrams arrive twice", _duplicate),
    "reorder": Verb(("SHARE",), False, "so many datagrams arrive late", _reorder),
    "starve": Verb(("COUNT",), False, "nodes read what they are sent 0.5 to 2.5 s late", _starve),
    "wall": Verb(("COUNT", "in|out"), True, "nothing goes in to nodes, or out", _wall),
    "flip": Verb(("COUNT", "in|out", "EVERY"), True, "the same, on and off", _flip),
    "lossy": Verb(("COUNT", "SHARE"), True, "so much of what nodes are sent is lost", _lossy),
    "mute": Verb(("COUNT",), True, "gossip of nodes gets nowhere, all else does", _mute),
    "part": Verb(("COUNT",), True, "nodes are cut off from the rest and the broker", _part),
    "outage": Verb((), True, "the broker is away", _outage),
    "jump": Verb(("COUNT", "SECONDS"), False, "wall clocks of nodes are set by so much", _jump),
    "hub-kill": Verb(("NUMBER",), True, "a membership service is killed, a new one comes after", _hub_kill),
    "hub-stop": Verb(("NUMBER",), True, "a membership service does not run", _hub_stop),
}
"""Verb -> what it wants and does."""


def docs() -> str:
    """Return the language as a Markdown table."""
    rows = [("line", "what happens"), ("---", "---")]
    for name, verb in VERBS.items():
        lasts = " for SECONDS" if verb.lasts else ""
        rows.append((f"`at SECONDS {' '.join([name, *verb.words])}{lasts}`".replace("|", "\\|"), verb.means))
    return "\n".join("| " + " | ".join(row) + " |" for row in rows) + "\n"
