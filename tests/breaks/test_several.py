"""Several die at once: neighbours, the first, the last, all but one, all that compute; at many moments of a run.

All moments: `pytest -m slow tests/breaks/test_several.py`.
"""

from __future__ import annotations

import functools

import pytest

from support.breaks import Scene, record

NAMES = "abcde"
GROUPS = {
    # who dies, who of the others are spares
    "the first": ("a", ""),
    "the last": ("e", ""),
    "two neighbours": ("bc", ""),
    "the last and the first": ("ea", ""),
    "two that are no neighbours": ("bd", ""),
    "three neighbours": ("bcd", ""),
    "all but the first": ("bcde", ""),
    "all but the last": ("abcd", ""),
    "all but one in the middle": ("abde", ""),
    "all that compute, one spare is left": ("abcd", "e"),
    "all that compute, two spares are left": ("abc", "de"),
    "all spares": ("de", "de"),
    "a spare and its neighbour": ("cd", "de"),
}


@functools.cache
def messages(spares: str) -> tuple[tuple[str, int], ...]:
    with Scene(NAMES, spares=spares) as scene:
        return tuple((m.what, m.nth) for m in scene.play() if m.what != "BYE")


def played(group: str, key: tuple[str, int]) -> None:
    victims, spares = GROUPS[group]
    with Scene(NAMES, spares=spares) as scene:
        scene.at(lambda m: (m.what, m.nth) == key, scene.kills(*victims))
        scene.play()
        for seconds in scene.mended:
            record(f"death of several: {group}", seconds, level="in one process", message=key[0])


@pytest.mark.parametrize("group", GROUPS)
def test_at_some_messages(group: str) -> None:
    for key in messages(GROUPS[group][1])[sum(group.encode()) % 79 :: 79]:
        played(group, key)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("group", GROUPS)
def test_at_every_message(group: str) -> None:
    for key in messages(GROUPS[group][1]):
        played(group, key)
