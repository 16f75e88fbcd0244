"""A break at every moment: at each message of a run, from the first hello to the last lap, after so many bytes of it.

Rings inside one process on real sockets; each wire between two workers can be broken at any byte (support.wires). By
default every so many messages are tried; all of them, with every victim and place, by

    pytest -m slow tests/breaks/test_moments.py
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pytest

from support.breaks import Scene, record
from support.wires import Break, Message

Happens = Callable[[Message], Break | None]
Plot = Callable[[Scene], Happens]
Key = tuple[str, int]
T = TypeVar("T")

PLOTS: dict[str, Plot] = {
    **{
        f"{victim} dies after {part:g} of it": lambda s, v=victim, p=part: s.kills(v, at=p)  # type: ignore[misc]
        for victim in ("sender", "to", "other")
        for part in (0, 0.1, 0.5, 1)
    },
    "sender dies, its socket closes in order": lambda s: s.kills("sender", how="end"),
    **{f"reset after {part:g} of it": lambda s, p=part: s.resets(at=p) for part in (0, 0.5, 1)},  # type: ignore[misc]
    "closed in the middle of it": lambda s: s.resets(how="end"),
    "its host is gone": lambda s: s.silences("sender"),
    "the host it is for is gone": lambda s: s.silences("to"),
    "another host is gone": lambda s: s.silences("other"),
    "it is held back until the ring is made anew": lambda s: s.delays(),
    **{f"a bit of it turns over, {part:g} on": lambda s, p=part: s.flips(p) for part in (0, 0.2, 0.5, 0.8, 1)},  # type: ignore[misc]
    "both ends die": lambda s: s.kills("sender", "to"),
    "neighbours of nobody are left: all but one die": lambda s: s.kills("sender", "to", "other"),
}
"""What may happen at a message. (A tenth of a frame is within its header, or of a hello within its length or first
field; half of it within its payload.)"""


WAYS: dict[str, dict[str, Any]] = {
    "alike": {},
    "lanes": {"lanes": True},
    "built differently": {"differ": True},
    "two spares": {"spares": "cd"},
    "lanes, built differently, a spare": {"lanes": True, "differ": True, "spares": "d"},
}


@functools.cache
def messages(way: str) -> tuple[Key, ...]:
    """All messages of a run that nothing happens to, by kind and number, in order. A BYE may come when all is over."""
    with Scene("abcd", **WAYS[way]) as scene:
        return tuple((m.what, m.nth) for m in scene.play() if m.what != "BYE")


def is_(key: Key, generation: int = 1) -> Callable[[Message], bool]:
    return lambda m: (m.what, m.nth) == key and m.generation >= generation


def played(way: str, key: Key, plot: str) -> None:
    with Scene("abcd", **WAYS[way]) as scene:
        scene.at(is_(key), PLOTS[plot](scene))
        scene.play()
        for seconds in scene.mended:
            record(plot, seconds, level="in one process", way=way, message=key[0])


def thinned(keys: Sequence[T], every: int, plot: str) -> Sequence[T]:
    """Every so many of them; where that begins differs from plot to plot."""
    first = sum(plot.encode()) % every
    return keys[first::every]


@pytest.mark.parametrize("plot", PLOTS)
def test_at_some_messages(plot: str) -> None:
    everything = [(w, key) for w in WAYS for key in messages(w)]
    for way, key in thinned(everything, 149, plot):
        played(way, key, plot)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("way", WAYS)
def test_at_every_message(way: str, plot: str) -> None:
    for key in messages(way):
        played(way, key, plot)


# -------------------------------------------------------------------------------------------- a break of the mending


def of(what: str, sender: str, step: int, piece: int) -> Callable[[Message], bool]:
    return lambda m: (m.what, m.sender, m.step, m.piece) == (what, sender, step, piece)


FIRST: dict[str, tuple[Callable[[Message], bool], Plot]] = {
    "in the gradients": (of("REDUCE", "b", 1, 1), lambda s: s.kills("c")),
    # the last active has the result, others have it in part: it is sent again
    "in the result": (of("FINAL", "a", 1, 0), lambda s: s.kills("b")),
    "in the result's last piece": (of("FINAL", "c", 1, 3), lambda s: s.kills("d", at=0)),
    "no death, a reset": (of("FINAL", "b", 1, 2), lambda s: s.resets()),
}
SECOND = {
    "reset": "reset after 0.5 of it",
    "sender": "sender dies after 0.5 of it",
    "to": "to dies after 0.1 of it",
    "other": "other dies after 1 of it",
    "gone": "its host is gone",
    "late": "it is held back until the ring is made anew",
}


@functools.cache
def mending(first: str) -> tuple[Key, ...]:
    """Messages of the world after a first break, up to those of the second step that it reduces."""
    when, plot = FIRST[first]
    with Scene("abcdef") as scene:
        scene.at(when, plot(scene))
        after = [m for m in scene.play() if m.generation == 2]
    step = min(m.step for m in after if m.what in ("REDUCE", "FINAL"))
    return tuple((m.what, m.nth) for m in after if m.step <= step and m.what != "BYE" and m.nth < 40)


def mended_twice(first: str, key: Key, second: str) -> bool:
    """Play both; False if the second never happened: what is sent again, and to whom, is a matter of milliseconds."""
    when, plot = FIRST[first]
    with Scene("abcdef") as scene:
        scene.at(when, plot(scene))
        scene.at(is_(key, generation=2), PLOTS[SECOND[second]](scene))
        scene.play(least=1)
        for seconds in scene.mended:
            record(f"{first}, then {second}", seconds, level="in one process", message=key[0])
        return len(scene.broke) == 2


@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("second", SECOND)
def test_a_second_break_at_some_messages_of_the_mending(first: str, second: str) -> None:
    keys = mending(first)
    begin = sum((first + second).encode()) % len(keys)
    # at some of them, in some runs, the second comes too late: then at the next one
    assert any(mended_twice(first, key, second) for key in (*keys[begin:], *keys[:begin])[:12])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", FIRST)
@pytest.mark.parametrize("second", SECOND)
def test_a_second_break_at_every_message_of_the_mending(first: str, second: str) -> None:
    happened = [mended_twice(first, key, second) for key in mending(first)]
    assert sum(happened) > 0.8 * len(happened)
