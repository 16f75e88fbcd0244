"""Verbs that act on and look at a job that really trains."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from reknit.core import context
from reknit.core.broker import Broker
from support.agents import until
from support.ipv6 import ipv6_here
from support.launchers import Command, Place
from support.tiny import TINY

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture
def training(place: Place) -> Command:
    script = place.script("tiny.py", TINY)
    run = place.start("run", "--job", "t", "--node", "n", "--nproc-per-node", "2", str(script), "gate", "500")
    run.until("loss ")
    return run


def members(place: Place) -> list[str]:
    return sorted(m["worker"] for m in place.json("world", "--job", "t")["members"])


def test_scale_drain_and_stop_a_job_that_runs(place: Place, training: Command) -> None:
    status = place.json("status", "--job", "t")
    assert status["state"] == "running"
    assert status["progress"]["steps"] == 2000
    assert {w["state"] for w in status["workers"]} == {"active"}

    assert "from 2 workers to 3 workers" in place.call("scale", "3", "--job", "t").shown
    until(lambda: members(place) == ["n-0", "n-1", "n-2"], "three workers", 90.0)
    many = place.call("scale", "99", "--job", "t", code=2)
    assert "99 workers are more than job 't' has slots: a step has" in many.shown
    assert "scale to" in many.shown
    refused = place.call("drain", "n-7", "--job", "t", code=2)
    assert "there are: n, n-0, n-1, n-2" in refused.shown
    place.call("drain", "n-1", "--job", "t")
    until(lambda: members(place) == ["n-0", "n-2"], "two workers", 90.0)

    place.call("stop", "--job", "t", "--reason", "enough")
    assert training.wait() == 143, training.shown
    assert "stopped: t: enough" in training.shown
    place.nothing_left()
    assert place.json("status", "--job", "t")["state"] == "stopped"
    assert "is over" in place.call("scale", "2", "--job", "t", code=2).shown
    assert len(place.json("world", "--history", "--job", "t")) >= 3
    proof = place.json("ledger", "verify", "--job", "t")
    assert proof["ok"]
    assert proof["steps"] == place.json("status", "--job", "t")["progress"]["committed"]


@pytest.mark.parametrize("spares", ["0", "1"])
def test_a_polite_stop_leaves_a_checkpoint_of_the_last_step(place: Place, spares: str) -> None:
    script = place.script("tiny.py", TINY)
    flags = ("--job", "t", "--node", "n", "--nproc-per-node", "2", "--spares", spares)
    run = place.start("run", *flags, str(script), "gate", "500")
    run.until("loss ")
    until(lambda: len(members(place)) == 2 + int(spares), "all are there", 90.0)
    place.call("stop", "--job", "t")
    assert run.wait() == 143, run.shown
    place.nothing_left()
    [last] = place.json("checkpoints", "ls", "--job", "t")[-1:]
    assert last["step"] == place.json("status", "--job", "t")["progress"]["committed"]
    assert len(place.json("world", "--history", "--job", "t")) == 2, "the ring, and its end"
    assert not place.json("alerts", "--job", "t"), "nothing has failed"
    anew = place.start("run", *flags, str(script), "gate", "500")
    anew.until(f"with --resume it would go on from the checkpoint of step {last['step']}")
    anew.signal(signal.SIGINT)
    anew.wait()


# All is trained when the script raises: in the ring's block, or after it.
_LATE = TINY.replace('print("trained", flush=True)', "")


@pytest.mark.parametrize("indent", ["    ", ""])
def test_a_script_that_fails_after_its_last_step_is_no_success(place: Place, indent: str) -> None:
    script = place.script("late.py", _LATE + f"{indent}raise ValueError('no room for the final save')\n")
    place.open("gate")
    run = place.call("run", "--job", "t", "--node", "n", "--nproc-per-node", "2", str(script), "gate", "1", code=1)
    end = run.err[next(i for i, line in enumerate(run.err) if "root cause" in line) :]
    assert "ValueError: no room for the final save" in end[0]
    assert "Traceback" in end[1]
    assert any("training completed, but the script failed after it: t" in line for line in end)
    assert place.json("status", "--job", "t")["state"] == "completed"
    place.nothing_left()


def test_follow_ends_with_the_job_and_the_summary_tells_it(place: Place, training: Command) -> None:
    follow = place.start("events", "--follow", "--json", "--area", "world,shards", "--job", "t")
    follow.until("world.changed")
    place.open("gate")
    assert training.wait() == 0, training.shown
    assert follow.wait() == 0
    rows = [json.loads(line) for line in follow.out]
    assert {row["event"]["kind"].partition(".")[0] for row in rows} == {"world", "shards"}
    assert [row["seq"] for row in rows] == sorted(row["seq"] for row in rows)
    end = "\n".join(training.err)
    assert "completed: t" in end
    assert "2000 steps" in end
    assert "every sample in exactly one committed step" in end
    assert place.json("trace", "--job", "t"), "the first world is a trace"
    assert place.json("alerts", "--job", "t") == []


def test_the_drain_of_the_last_node_is_a_stop_not_a_completion(place: Place, training: Command) -> None:
    place.call("drain", "n", "--job", "t")
    assert training.wait() == 143, training.shown
    assert "stopped: t: its last node has left: drained" in training.shown
    place.nothing_left()


@pytest.fixture
def machines() -> Iterator[tuple[str, str]]:
    """Two network namespaces that reach each other only at 10.99.7.1 and 10.99.7.2."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and iproute2")
    names = (f"rk{os.getpid()}a", f"rk{os.getpid()}b")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True)

    try:
        try:
            for name in names:
                ip("netns", "add", name)
            ip("link", "add", "v0", "netns", names[0], "type", "veth", "peer", "name", "v0", "netns", names[1])
            for i, name in enumerate(names, 1):
                ip("-n", name, "addr", "add", f"10.99.7.{i}/24", "dev", "v0")
                ip("-n", name, "link", "set", "v0", "up")
                ip("-n", name, "link", "set", "lo", "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"no network namespaces here: {error.stderr.decode()}")
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def test_two_machines_reach_each_other_without_names(place: Place, machines: tuple[str, str]) -> None:
    script = str(place.script("tiny.py", TINY))
    place.open("gate")
    common = ("run", "--job", "t", "--nnodes", "2")
    first = place.start(
        *common, "--node", "a", "--host", "10.99.7.1", script, "gate", "20", wrap=("ip", "netns", "exec", machines[0])
    )
    job = place.home / "jobs/t"
    until((job / "run.json").exists, "the first node has submitted")
    env = place.env | {"REKNIT_HOME": str(place.home) + "-b"}  # another machine has another home
    second = place.start(
        *common,
        *("--node", "b", "--nats", str(job / "endpoint.json"), "--secret-file", str(job / "secret")),
        *(script, "gate", "20"),
        wrap=("ip", "netns", "exec", machines[1]),
        env=env,
    )
    assert second.wait(120.0) == 0, second.shown
    assert first.wait() == 0, first.shown
    addresses = {
        m["address"].partition(":")[0]
        for row in place.json("events", "--area", "world", "--job", "t")
        for m in row["event"].get("members", [])
    }
    assert addresses == {"10.99.7.1", "10.99.7.2"}
    place.nothing_left()


def test_a_node_whose_broker_goes_before_its_agent_has_joined_gives_up(place: Place, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    endpoint = broker.start()
    try:
        url = endpoint.url.replace("//", f"//{endpoint.user}:{endpoint.password}@")
        script = place.script("hello.py", "print('hello')\n")
        run = place.start("run", "--job", "t", "--node", "n", "--nats", url, str(script))
        until(lambda: place.pids("reknit.worker.agent"), "the agent")
    finally:
        broker.kill()
    assert run.wait(120.0) == 75, run.shown
    assert "is gone: this node never joined job t" in run.shown
    place.nothing_left()


@pytest.mark.skipif(not ipv6_here(), reason="no IPv6 loopback here")
def test_a_job_over_ipv6_a_death_and_what_the_registry_says_of_it(place: Place) -> None:
    script = place.script("tiny.py", TINY)
    flags = ("--job", "t", "--node", "n", "--nproc-per-node", "3", "--host", "::1", "--label", "rack=r1")
    run = place.start("run", *flags, str(script), "gate", "500")
    run.until("loss ")
    rows: dict[str, dict[str, Any]] = {}

    def all_pass() -> bool:
        rows.update({r["name"]: r for r in place.json("registry", "ls", "--job", "t")})
        workers = [r for r in rows.values() if r["kind"] == "worker"]
        return len(workers) == 3 and all(r["health"] == "passing" for r in rows.values())

    until(all_pass, "all are registered and well", 90.0)
    assert all(rows[f"n-{i}"]["address"].startswith("[::1]:") for i in range(3))
    assert {rows[f"n-{i}"]["reason"] for i in range(3)} == {"member"}
    assert rows["monitor"]["version"] == rows["n"]["version"]
    before = rows["n-1"]["id"]
    os.kill(rows["n-1"]["pid"], signal.SIGKILL)
    until(lambda: all_pass() and rows["n-1"]["id"] != before, "its successor is registered", 90.0)
    until(lambda: members(place) == ["n-0", "n-1", "n-2"], "and a member", 90.0)
    place.open("gate")
    assert run.wait(120.0) == 0, run.shown
    place.nothing_left()


def test_resume_says_from_which_run_and_does_not_guess(place: Place) -> None:
    """A long run, then a short one that was begun anew by mistake: which of them is meant, the user has to say."""
    script = str(place.script("tiny.py", TINY))

    def train(*flags: str, epochs: int, code: int = 0) -> str:
        each = ("--checkpoint-every-steps", "4")
        return place.call(
            "run", "--job", "t", "--node", "n", *each, *flags, script, "gate", str(epochs), code=code
        ).shown

    def newest() -> tuple[str, int]:
        row = place.json("checkpoints", "ls", "--job", "t")[0]
        return row["run"], row["step"]

    train(epochs=10)
    first, at = newest()
    train(epochs=5)
    second, early = newest()
    assert (second != first, early < at) == (True, True)

    refused = train("--resume", epochs=11, code=2)
    assert f"run {second} at step {early}" in refused
    assert f"run {first} at step {at}" in refused
    assert newest() == (second, early), "nothing has begun"

    resumed = train("--resume-run", first, epochs=15)
    assert f"it goes on from run {first} at step {at}" in resumed
    assert f"(step {at}, of run {first})" in resumed
    [restored] = [
        row["event"]
        for row in place.json("events", "--job", "t", "--area", "checkpoint")
        if row["event"]["kind"] == "checkpoint.restored" and row["event"]["checkpoint"]
    ]
    assert (restored["step"], restored["checkpoint"].rpartition("-")[0]) == (at, first)
    assert place.json("ledger", "verify", "--job", "t")["ok"]
    # the line that has come furthest is now the newest one too: nothing is open any more
    third, later = newest()
    assert (third not in (first, second), later > at) == (True, True)
    assert f"(step {later}, of run {third})" in train("--resume", epochs=16)


def test_a_launcher_that_was_killed_and_the_same_command_again(place: Place) -> None:
    script = str(place.script("tiny.py", TINY))
    common = ("run", "--job", "t", "--node", "n", "--nproc-per-node", "2", script, "gate", "200")
    first = place.start(*common)
    first.until("loss ")
    first.process.kill()
    first.wait()
    place.nothing_left()
    again = place.start(*common)
    again.until("loss ")
    before, _, _ = again.shown.partition("the ring begins again")
    assert "no checkpoint was written, beginning at step 0, without the " in again.shown
    assert "n-0 and n-1 died: the agent of n was started anew; nobody is left" in before
    assert "goes on" not in before.replace("going on with its run", "")
    assert "degraded" not in again.shown
    progress = [line for line in before.splitlines() if line.startswith("reknit: step ")]
    assert not progress, "nobody runs yet"
    assert "state    running\n" in place.call("status", "--job", "t").shown
    assert place.call("world", "--job", "t").shown.startswith("generation 3, running: the ring begins again")
    place.open("gate")
    assert again.wait() == 0, again.shown
    assert place.json("ledger", "verify", "--job", "t")["ok"]


_BAD = TINY.replace(
    "        for x, y in step:", "        if step.index == 5: raise ValueError('bad step')\n        for x, y in step:"
)


def test_a_script_that_fails_alike_every_time_is_told_once_and_no_node_is_blamed(place: Place) -> None:
    script = str(place.script("bad.py", _BAD))
    place.open("gate")
    run = place.call("run", "--job", "t", "--node", "n", script, "gate", "3", code=1)
    live, _, end = run.shown.partition("root cause:")
    assert live.count("[n-0] Traceback (most recent call last):") == 1
    assert live.count("[n-0] ValueError: bad step (same error again; see the log)") == 3
    assert end.count("Traceback (most recent call last):") == 1
    assert "  4 times in all: n-0 (4)" in end
    assert "then:" not in end
    assert "nobody listens at" not in run.shown, "the script's own error is the reason"
    assert "step 5 fails again and again: the script or its data is to blame" in end
    assert "node-held" not in run.shown
    kinds = {row["event"]["kind"] for row in place.json("events", "--job", "t")}
    assert "node.held" not in kinds
    said = [line for line in live.splitlines() if "waiting for" in line]
    assert len(said) <= 1, said


def test_a_node_that_joins_takes_what_the_submission_says_of_resuming(place: Place, training: Command) -> None:
    """The run was begun afresh: who joins it with --resume must not restore it from an older run's checkpoint."""
    place.call("stop", "--job", "t")
    training.wait()
    script = str(place.folder / "tiny.py")
    common = ("run", "--job", "t", "--nnodes", "1:2", "--node")
    first = place.start(*common, "a", script, "gate", "500")
    first.until("it begins at step 0")
    first.until("loss ")
    second = place.start(*common, "b", "--resume", script, "gate", "500")
    second.until("node b joins job t")
    agents: dict[str, context.AgentContext] = {}

    def both_told() -> bool:
        mark = f"{context.AGENT}=".encode()
        for pid in place.pids("reknit.worker.agent"):
            with contextlib.suppress(OSError):
                for told in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                    if told.startswith(mark):
                        agent = msgspec.json.decode(told.removeprefix(mark), type=context.AgentContext)
                        agents[agent.node] = agent
        return set(agents) == {"a", "b"}

    until(both_told, "two agents", 60.0)
    assert {(agent.resume, agent.resume_run) for agent in agents.values()} == {(False, "")}
    for run in (second, first):
        run.signal(signal.SIGINT)
        run.wait()
