"""The benchmarks of membership: figures, verdicts, how an arrival is noted, and a small town of simulated workers."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import heartbeats
import membership_events
import pytest
from figures import quantiles

HEARS = """
import types
from reknit.core.follow import Follow

class Follower:
    foreign = 0
    def _say_foreign(self, subject):
        self.foreign += 1

one = Follower()
for what in ("world.changed", "world.targets"):
    message = types.SimpleNamespace(subject=f"live.reknit.j.{what}", headers={"Nats-Sequence": "7"}, data=b"")
    Follow._on_live(one, message)
print(one.foreign)
"""


def test_quantiles():
    assert quantiles([4, 1, 3, 2], (0.5, 0.75, 1.0)) == [2, 3, 4]
    assert quantiles(range(1, 101), (0.99,)) == [99]
    assert quantiles([], (0.5,)) == [None]


def test_a_process_notes_the_worlds_that_come_and_goes_on_with_them(tmp_path):
    notes = tmp_path / "notes"
    env = os.environ | {"PYTHONPATH": str(membership_events.NOTING), "BENCH_NOTES": str(notes)}
    done = subprocess.run(
        [sys.executable, "-c", HEARS], env=env, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "2\n", "both were handed on"
    (line,) = map(json.loads, notes.read_text().splitlines())
    assert (line["seq"], line["pid"] > 0, line["time"] > 0) == (7, True, True)


def figures(**changed):
    found = {
        "kill_worker_ms": {"median": 15.0, "max": 90.0},
        "kill_agent_ms": {"median": 30.0, "max": 90.0},
        "silence_s": {"median": 1.0, "max": 2.0},
        "ten_at_once": {"world_changes": 1},
    }
    return found | changed


@pytest.mark.parametrize(
    ("changed", "missed"),
    [
        ({}, ""),
        ({"kill_worker_ms": {"median": 15.1, "max": 16.0}}, "kill_worker"),
        ({"kill_agent_ms": {"median": None, "max": None}}, "kill_agent"),
        ({"silence_s": {"median": 1.0, "max": 2.01}}, "silence"),
        ({"ten_at_once": {"world_changes": 2}}, "ten at once"),
        ({"ten_at_once": {"world_changes": None}}, "ten at once"),
    ],
)
def test_each_bar_can_be_missed(changed, missed):
    counts = dict.fromkeys(("kill_worker", "kill_agent", "silence", "ten_at_once"), 1)
    said = membership_events.misses(figures(**changed), counts)
    assert [one.partition(":")[0] for one in said] == ([missed] if missed else [])
    assert membership_events.misses(figures(**changed), dict.fromkeys(counts, 0)) == [], "what was left out"


def test_the_bar_of_heartbeats_can_be_missed():
    assert heartbeats.misses({"delivered_ms": {"p99": 100.0}}) == []
    assert heartbeats.misses({"delivered_ms": {"p99": 100.1}}) != []
    assert heartbeats.misses({"delivered_ms": {"p99": None}}) != []


def test_a_small_town_of_simulated_workers():
    found = heartbeats.measured(workers=24, events=2, seconds=1.0, many=2)
    assert found["agents"] == 3
    assert [event["arrivals"] for event in found["events"]] == [26, 25]
    assert set(found["cpu"]) >= {"membership", "shards", "checkpoint", "monitor", "crowd"}
    assert found["delivered_ms"]["p50"] > 0
