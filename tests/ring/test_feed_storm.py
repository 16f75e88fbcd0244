"""Random histories of a run that is followed from outside: every script compares its weights after each step."""

from __future__ import annotations

import itertools
import random
import threading

import pytest

from reknit.worker import side
from support.feeds import Course
from support.meddler import Meddler

HELLO = 500
"""More bytes than a member says before its first answer."""


class Storm:
    """A course whose members are reached through spoiling proxies, and one random event after the other."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.course = Course(["m0", "m1", "m2"])
        self.meddlers = {name: Meddler(m.member) for name, m in self.course.members.items()}
        self.numbers = itertools.count(3)

    def between(self, event: str) -> None:
        """Events between two steps: a member is lost, or there is one more."""
        course = self.course
        if event == "lose" and len(course.members) > 1:
            course.members.pop(self.victim()).close()
        elif event == "member" and len(course.members) < 5:
            name = f"m{next(self.numbers)}"
            self.meddlers[name] = Meddler(course.join(name).member)

    def during(self, event: str) -> None:
        """Events while steps go on."""
        course, meddler = self.course, self.meddlers[self.victim()]
        if event == "cut":
            meddler.cut()
        elif event == "flip":
            meddler.flip_at, meddler.flipped = self.rng.randrange(HELLO, 60_000), False
        elif event == "freeze":
            meddler.stop_at = self.rng.randrange(HELLO, 60_000)
        elif event == "candidate" and len(course.candidates) < 4:
            course.candidate(f"c{next(self.numbers)}")
        elif event == "leave" and course.candidates:
            course.candidates.pop(self.rng.randrange(len(course.candidates))).close()

    def victim(self) -> str:
        return self.rng.choice(list(self.course.members))

    def world(self) -> None:
        """A newer world, that everybody hears of."""
        course = self.course
        course.generation += 1
        for member in course.members.values():
            member.feeder.serving(course.world())
        for c in course.candidates:
            c.candidate.follow([self.meddlers[name].member for name in course.members], course.generation, None)

    def close(self) -> None:
        self.course.close()
        for meddler in self.meddlers.values():
            meddler.close()


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(3, 30))])
def test_a_storm_of_losses_flips_freezes_and_newcomers_never_gives_a_wrong_bit(monkeypatch, seed):
    """The seed says all."""
    monkeypatch.setattr(side, "SILENCE", 0.7)
    storm = Storm(seed)
    course, rng = storm.course, storm.rng
    try:
        for _ in range(14):
            event = rng.choice(["lose", "cut", "flip", "freeze", "candidate", "candidate", "leave", "member"])
            course.go(rng.choice([0.0, 0.001, 0.005]))
            threading.Event().wait(rng.random() * 0.1)  # how far the run gets before it
            storm.during(event)
            course.halt()
            storm.between(event)
            storm.world()
        for meddler in storm.meddlers.values():
            meddler.flip_at = meddler.stop_at = -1
        course.candidate("last")
        storm.world()
        course.advance(5)
        for c in course.candidates:
            course.caught_up(c)
    finally:
        storm.close()
