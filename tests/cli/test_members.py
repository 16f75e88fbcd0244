"""Cases of membership from end to end: real launchers, agents, workers, services and broker, real signals."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from support.agents import until
from support.jobs import PATIENCE, Job
from support.launchers import Place
from support.trainings import SCRIPT
from support.wall_clock import NoCompiler, WallClock

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

RAISES = SCRIPT.replace(
    "        computed = 0\n",
    "        computed = 0\n"
    "        wish = folder / f'raise-{ring.id}'\n"
    "        if wish.exists():\n"
    "            wish.unlink()\n"
    "            raise ValueError(f'{ring.id} was asked to fail')\n",
)
assert RAISES != SCRIPT


def clock(file: Path) -> WallClock:
    try:
        made = WallClock(file)
    except NoCompiler as error:
        pytest.skip(str(error))
    made.ahead(3600.0)
    assert made.shows() > time.time() + 3000.0, "processes here do not ask this library for the time"
    made.ahead(0.0)
    return made


def test_workers_of_different_nodes_fail_and_all_count_on_one_counter(place: Place) -> None:
    job = Job(place, "j", script=RAISES)
    job.up()
    nodes = [job.node(n, "--nnodes", "3", "--max-restarts", "3") for n in "abc"]
    everybody = {"a-0", "b-0", "c-0"}
    job.until_trains(everybody)
    for count, victim in enumerate(("a-0", "b-0", "c-0"), 1):
        before = job.pid(victim)
        (job.folder / f"raise-{victim}").touch()
        until(lambda victim=victim, before=before: job.pid(victim) != before, f"{victim} is back", PATIENCE)
        job.until_trains(everybody)
        assert job.worlds()[-1]["restarts"] == count
    (job.folder / "raise-a-0").touch()
    assert [node.wait(PATIENCE) for node in nodes] == [1, 1, 1]
    counts = [w["restarts"] for w in job.events("world.changed")]
    assert counts == sorted(counts)
    assert {1, 2, 3} <= set(counts)
    (end,) = job.events("job.finished")
    assert (end["outcome"], end["root_worker"]) == ("failed", "a-0")
    assert "a-0 was asked to fail" in end["reason"]
    assert "restart budget spent: 4 unexpected exits, 3 allowed" in end["reason"]
    for node in nodes:
        assert "restart budget spent: 4 unexpected exits, 3 allowed" in node.shown
    job.check()


def test_an_extra_node_stands_by_in_every_world_and_takes_over(place: Place) -> None:
    job = Job(place, "j")
    job.up()
    for name in "abc":
        job.node(name, "--nnodes", "1:2", "--spares", "1", "--last-call", "60")
    job.until_trains({"a-0", "b-0", "c-0"}, slots=())
    pids = {w: job.pid(w) for w in job.roles()}
    victim = next(w for w, role in job.roles().items() if role == "active")
    os.kill(pids[victim], signal.SIGKILL)  # a new ring, with all three nodes there
    until(lambda: job.pid(victim) != pids[victim], "the worker is back", PATIENCE)
    job.until_trains({"a-0", "b-0", "c-0"}, slots=())
    assert job.roles()[victim] == "spare", "who stood by has its place"
    assert {w: job.pid(w) for w in pids if w != victim} == {w: p for w, p in pids.items() if w != victim}
    gone = next(w for w, role in job.roles().items() if role == "active")
    rest = {"a-0", "b-0", "c-0"} - {gone}
    job.kill_node(gone[0])
    job.until_trains(rest)
    assert set(job.roles().values()) == {"active"}
    assert all(launcher.process.poll() is None for launcher in job.launchers.values())
    assert all([m["role"] for m in w["members"]].count("active") == 2 for w in job.worlds())
    job.stop()
    job.check()


def test_nodes_that_start_staggered_wait_for_a_bounded_last_call(place: Place) -> None:
    call = 2.0
    job = Job(place, "j")
    job.up()
    flags = ("--nnodes", "2:4", "--last-call", str(call))
    job.node("a", *flags)
    until(lambda: job.events("worker.registered"), "the first one waits", PATIENCE)
    job.node("b", *flags)
    job.until_trains({"a-0", "b-0"})
    first = job.worlds()[0]
    came = [e["at"] for e in job.events("worker.registered")][:2]
    assert [m["worker"] for m in first["members"]] == ["a-0", "b-0"]
    assert first["at"] - max(came) > 0.9 * call, "it did not wait for others"
    for late in "cd":
        job.node(late, *flags)
        job.until_trains({w for w in ("a-0", "b-0", "c-0", "d-0") if w[0] <= late})
    assert all(w["planned"] for w in job.worlds()[1:]), "who comes later disturbs nobody"
    job.stop()
    job.check()


def test_nodes_that_start_at_once_make_one_job_and_one_world(place: Place) -> None:
    """Nothing is there before: they also agree on who starts the broker and the services."""
    for round_ in range(3):
        job = Job(place, f"j{round_}", epochs=3)
        nodes = [job.node(n, "--nnodes", "1:4", "--last-call", "60") for n in "abcd"]
        job.go()
        assert [node.wait(PATIENCE) for node in nodes] == [0] * 4, "\n\n".join(n.shown for n in nodes)
        assert len(job.events("job.submitted")) == 1
        first = job.worlds()[0]
        assert sorted(m["worker"] for m in first["members"]) == ["a-0", "b-0", "c-0", "d-0"]
        assert {s.generation for s in job.steps()} == {first["generation"]}
        assert job.check() == job.total
        place.nothing_left()


def test_clocks_that_stand_still_are_no_tie_and_no_trap(place: Place) -> None:
    """All that two nodes say has one and the same time, also of a worker that dies and comes back."""
    watch = clock(place.folder / "clock")
    watch.stands(1_700_000_000.0)
    job = Job(place, "j")
    job.up(watch.env)
    for name in "ab":
        job.node(name, "--nnodes", "2", env=watch.env)
    job.until_trains({"a-0", "b-0"})
    assert {s.time for s in job.steps()} == {1_700_000_000.0}
    lives = {m["worker"]: m["incarnation"] for m in job.worlds()[-1]["members"]}
    assert [m["worker"] for m in job.worlds()[0]["members"]] == ["a-0", "b-0"]
    for victim in ("b-0", "b-0", "a-0"):
        pids = {s.pid for s in job.steps() if s.worker == victim}
        generation = job.worlds()[-1]["generation"]
        os.kill(next(m["pid"] for m in job.worlds()[-1]["members"] if m["worker"] == victim), signal.SIGKILL)
        until(
            lambda victim=victim, pids=pids: {s.pid for s in job.steps() if s.worker == victim} - pids,
            f"{victim} is back",
            PATIENCE,
        )
        job.until_trains({"a-0", "b-0"})
        newest = {m["worker"]: m["incarnation"] for m in job.worlds()[-1]["members"]}
        assert newest[victim] > lives[victim], "a later life has the greater number"
        assert job.worlds()[-1]["generation"] > generation
        lives = newest
    job.stop()
    job.check()


def test_clocks_that_differ_and_are_set_disturb_nobody(place: Place) -> None:
    clocks = {name: clock(place.folder / f"clock-{name}") for name in ("plane", "a", "b")}
    clocks["b"].ahead(600.0)
    job = Job(place, "j")
    job.up(clocks["plane"].env)
    for name in "ab":
        job.node(name, "--nnodes", "2", "--checkpoint-every-seconds", "1", env=clocks[name].env)
    everybody = {"a-0", "b-0"}
    job.until_trains(everybody)
    pids = {w: job.pid(w) for w in everybody}
    worlds = len(job.worlds())

    def saved() -> int:
        return len(job.events("checkpoint.committed"))

    for name, ahead in (("b", -300.0), ("a", -300.0), ("plane", -300.0), ("plane", 900.0), ("a", 0.0)):
        clocks[name].ahead(ahead)
        before, step = saved(), max(s.step for s in job.steps())
        until(lambda before=before: saved() > before + 1, "checkpoints go on", PATIENCE)
        until(
            lambda step=step: {s.worker for s in job.steps() if s.step > step + 5} == everybody, "steps go on", PATIENCE
        )
    assert len(job.worlds()) == worlds, "the world was changed"
    assert {w: job.pid(w) for w in everybody} == pids
    job.stop()
    rows = place.json("events", "--job", "j")
    assert [path for row in rows for path in negative(row["event"])] == []
    begun = job.worlds()[0]["at"]
    alerts = [e for e in job.events("monitor.alert") if e["severity"] != "info" and e["state"] == "raised"]
    assert [e for e in alerts if e["at"] > begun] == []
    kept = [row["step"] for row in place.json("checkpoints", "ls", "--job", "j")]
    assert kept == sorted(kept, reverse=True), "newest first, whatever the clocks said"
    assert kept[0] == max(s.step for s in job.steps()) + 1
    job.check()


def negative(value: Any, path: str = "") -> list[str]:
    """Where an event tells a duration of less than nothing."""
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in negative(inner, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for number, inner in enumerate(value) for found in negative(inner, f"{path}.{number}")]
    return [f"{path}: {value}"] if "seconds" in path and isinstance(value, int | float) and value < 0 else []


def test_a_new_name_at_the_address_of_a_node_that_was_killed(place: Place) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    job = Job(place, "j")
    job.up()
    flags = ("--nnodes", "1:2", "--last-call", "60")
    job.node("a", *flags)
    job.node("b", *flags, "--gossip-port", port)
    job.until_trains({"a-0", "b-0"})
    job.kill_node("b")
    job.node("b2", *flags, "--gossip-port", port)
    job.until_trains({"a-0", "b2-0"})
    known = max(s.step for s in job.steps())
    until(lambda: {s.worker for s in job.steps() if s.step > known + 20} == {"a-0", "b2-0"}, "both go on", PATIENCE)
    members = [sorted(m["worker"] for m in w["members"]) for w in job.worlds()]
    assert [m for m, _ in itertools.groupby(members)] == [["a-0", "b-0"], ["a-0"], ["a-0", "b2-0"]]
    job.stop()
    assert [e for e in job.events("monitor.alert") if e["alert"].startswith("node-")] == []
    job.check()


def test_a_jobs_name_is_used_again_and_jobs_without_a_name_never_meet(place: Place) -> None:
    first = Job(place, "j", epochs=2)
    first.up()
    first.go()
    assert first.node("a").wait(PATIENCE) == 0
    first.check()
    again = Job(place, "j2", epochs=2)
    again.name = "j"
    again.go()
    assert again.node("a").wait(PATIENCE) == 0, again.launchers["a"].shown
    assert {s.step for s in again.steps()} == set(range(again.total)), "the second run trained from its beginning"
    runs = [e["run"] for e in again.events("job.submitted")]
    assert len(set(runs)) == 2
    assert all(e["outcome"] == "completed" for e in again.events("job.finished"))
    again.check()
    lives = [{m["incarnation"] for w in again.worlds() if w["run"] == run for m in w["members"]} for run in runs]
    assert not lives[0] & lives[1]

    script = str(place.script("train.py", SCRIPT))
    folders = [place.folder / f"own-{i}" for i in range(2)]
    for folder in folders:
        folder.mkdir()
    twins = [
        place.start(
            "run", "--node", f"t{i}", "--nnodes", "1:2", "--last-call", "1", script, str(folder), "0", "4", "-1"
        )
        for i, folder in enumerate(folders)
    ]
    assert [twin.wait(PATIENCE) for twin in twins] == [0, 0], "\n\n".join(t.shown for t in twins)
    names = [
        next(line for line in twin.err if "completed: " in line).partition("completed: ")[2].split()[0]
        for twin in twins
    ]
    assert len(set(names)) == 2
    for i, name in enumerate(names):
        rows = [r["event"] for r in place.json("events", "--job", name) if r["event"]["kind"] == "world.changed"]
        assert {m["worker"] for world in rows for m in world["members"]} == {f"t{i}-0"}
        assert place.json("ledger", "verify", "--job", name)["steps"] == 32
