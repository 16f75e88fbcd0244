"""The H/L rule: what the reports of observers amount to (Suresh et al., Stable and Consistent Membership, 2018).

A node that H or more of its K observers find silent is *out of reach*; with L or more it is *unstable*, and a cut waits
for it, so that many failures at once are found together. An observer that is out of reach or unstable itself cannot
report: it counts as one that agrees. In a ring of few nodes everybody has fewer observers than K, and the thresholds
shrink with their number.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Iterable, Mapping

from .preset import Preset
from .roster import Roster
from .rumour import Rumour
from .view import View


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """What the reports amount to.

    Attributes:
        out: nodes that are out of reach -> the observers that say so.
        unstable: nodes that some, not enough observers find silent.
    """

    out: Mapping[str, tuple[str, ...]]
    unstable: frozenset[str]


def observers(names: Iterable[str], preset: Preset) -> dict[str, tuple[str, ...]]:
    """Return who watches whom: node -> its observers, as every node of these computes it."""
    entries = {name: Rumour(name, 0, 0, 0, "", 0) for name in names}
    view = View(Roster(entries))
    preset = preset.for_size(len(entries))
    return {name: view.predecessors(name, preset.rings) for name in entries}


def count(
    reports: Mapping[str, Iterable[str]],
    watched_by: Mapping[str, tuple[str, ...]],
    preset: Preset,
    sick: Collection[str] = (),
) -> Count:
    """Count the reports.

    Args:
        reports: observer -> subjects that it finds silent, of those whose word counts.
        watched_by: node -> its observers.
        preset: K, H and L.
        sick: observers that say so of themselves: they abstain, as if they did not watch anybody. When a quarter of all
            nodes vanish, some that live lose most of those that they watch.
    """
    preset = preset.for_size(len(watched_by))
    if sick:
        watched_by = {name: tuple(o for o in who if o not in sick) for name, who in watched_by.items()}
    against: dict[str, set[str]] = {}
    for observer, subjects in reports.items():
        for subject in subjects:
            if subject in watched_by and observer != subject:
                against.setdefault(subject, set()).add(observer)
    explicit = {subject: tuple(sorted(who)) for subject, who in against.items()}
    suspected = set(against)
    while True:
        high, low = _levels(against, watched_by, preset)
        doubted = high | low
        added = False
        for subject in suspected:
            for observer in watched_by[subject]:
                if observer in doubted and observer not in against[subject] and observer not in reports:
                    against[subject].add(observer)
                    added = True
        if not added:
            return Count({name: explicit[name] for name in sorted(high)}, frozenset(low))


def _levels(
    against: Mapping[str, set[str]], watched_by: Mapping[str, tuple[str, ...]], preset: Preset
) -> tuple[set[str], set[str]]:
    high, low = set(), set()
    for subject, who in against.items():
        number = max(1, len(watched_by[subject]))
        enough = max(1, math.ceil(preset.high * min(number, preset.rings) / preset.rings))
        some = max(1, math.ceil(preset.low * min(number, preset.rings) / preset.rings))
        if len(who) >= enough:
            high.add(subject)
        elif len(who) >= some:
            low.add(subject)
    return high, low
