"""`reknit run` with real brokers, services, agents and scripts (which need no torch)."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from support.agents import until
from support.launchers import REKNIT, Command, Place

# Goes on until the file named by its first argument is there: no test waits for a time, on however busy a machine.
GATED = """
import pathlib, sys, time
print("up", flush=True)
gate = pathlib.Path(sys.argv[1])
while not gate.exists():
    time.sleep(0.02)
print("done", flush=True)
"""
STUBBORN = """
import signal, subprocess, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("up", flush=True)
time.sleep(1000)
"""


def test_a_run_from_begin_to_end_and_what_can_be_read_after_it(place: Place) -> None:
    script = place.script("hello.py", "import sys\nprint(sys.argv[1:])\nprint('to stderr', file=sys.stderr)\n")
    run = place.call("run", "--job", "hello", "--node", "n", str(script), "--nodes", "3", "--", "--x", "-v")
    assert "[n-0] ['--nodes', '3', '--', '--x', '-v']" in run.out
    assert any("to stderr" in line for line in run.err)
    assert "reknit: completed: hello: the script ended, but no step was trained in the ring" in run.err
    assert any("each worker ran the whole script by itself" in line for line in run.err)
    place.nothing_left()

    folder = place.home / "jobs" / "hello"
    for name in ("endpoint.json", "secret"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    status = place.json("status")
    assert (status["job"], status["state"]) == ("hello", "completed")
    kinds = [row["event"]["kind"] for row in place.json("events", "--job", "hello")]
    assert kinds[0] == "job.submitted"
    assert "job.finished" in kinds
    assert place.json("ledger", "verify", "--job", "hello")["ok"]
    assert "no step was committed, there is nothing to prove" in place.call("ledger", "verify", "--job", "hello").shown
    place.nothing_left()


def test_a_script_that_fails_is_not_tried_again_and_its_traceback_comes_first(place: Place) -> None:
    script = place.script("boom.py", "import time\ntime.sleep(0.1)\nraise ValueError('boom')\n")
    run = place.call("run", "--node", "n", "--nproc-per-node", "2", str(script), code=1)
    end = run.err[next(i for i, line in enumerate(run.err) if "root cause" in line) :]
    assert end[0].startswith("reknit: root cause: worker n-")
    assert "ValueError: boom" in end[0]
    assert any("raise ValueError('boom')" in line for line in end)
    assert any("/logs/n-" in line and "log:" in line for line in end)
    assert any(line.startswith("reknit: failed: boom-") for line in end)
    place.nothing_left()


def test_ctrl_c_once_ends_politely(place: Place) -> None:
    run = place.start("run", "--job", "j", str(place.script("s.py", GATED)), "gate")
    run.until("up")
    run.signal(signal.SIGINT)
    assert run.wait() == 130, run.shown
    place.nothing_left()
    assert place.json("status")["state"] == "stopped"


def test_ctrl_c_twice_ends_at_once_whatever_the_script_does(place: Place) -> None:
    run = place.start("run", "--job", "j", str(place.script("s.py", STUBBORN)))
    run.until("up")
    run.signal(signal.SIGINT)
    run.until("SIGINT: stopping")
    run.signal(signal.SIGINT)
    assert run.wait(15.0) == 130, run.shown
    place.nothing_left()
    assert place.json("status")["state"] == "stopped"


def test_ctrl_c_while_it_loads(place: Place) -> None:
    sitting = place.script(
        "early.py",
        "import reknit.cli as c, signal, sys\n"
        # a shell that runs the tests in the background has SIGINT ignored, and children inherit that
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "class Slow:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'reknit.cli.up':\n            import time\n"
        "            print('loading', file=sys.stderr, flush=True)\n            time.sleep(1000)\n"
        "sys.meta_path.insert(0, Slow())\nc.main()\n",
    )
    command = Command(place, [sys.executable, str(sitting)], place.env, subprocess.PIPE)
    place.commands.append(command)
    command.until("loading")
    command.signal(signal.SIGINT)
    assert command.wait() == 130
    assert command.err == ["loading", "reknit: interrupted"]


def test_sigterm_while_it_begins(place: Place) -> None:
    run = place.start("run", "--job", "j", str(place.script("s.py", GATED)), "gate")
    until(lambda: place.pids("nats-server"), "broker")
    run.signal(signal.SIGTERM)
    assert run.wait() == 143, run.shown
    place.nothing_left()


def test_kill_9_leaves_nothing_and_the_same_command_goes_on(place: Place) -> None:
    script = str(place.script("s.py", GATED))
    run = place.start("run", "--job", "j", script, "gate")
    run.until("up")
    run.signal(signal.SIGKILL)
    run.wait()
    place.nothing_left()
    assert place.json("status")["state"] == "interrupted"
    submitted = place.json("events", "--area", "job")[0]["event"]["run"]

    other = place.call("run", "--job", "j", script, "other", code=2)
    assert "argument 1 of the script: 'gate' there, 'other' here" in other.shown
    place.open("gate")
    again = place.call("run", "--job", "j", script, "gate")
    assert f"going on with its run {submitted}" in again.shown
    place.nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_finished_job_leaves_no_trap(place: Place) -> None:
    script = str(place.script("s.py", "print('done')"))
    place.call("run", "--job", "j", script)
    place.call("run", "--job", "j", script, "other")
    runs = [row["event"]["run"] for row in place.json("events") if row["event"]["kind"] == "job.submitted"]
    assert len(set(runs)) == 2


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_stop_ends_an_interrupted_job(place: Place) -> None:
    run = place.start("run", "--job", "j", str(place.script("s.py", GATED)), "gate")
    run.until("up")
    run.signal(signal.SIGKILL)
    run.wait()
    place.nothing_left()
    place.call("stop", "--job", "j")
    assert place.json("status")["state"] == "stopped"
    place.call("stop", "--job", "j", code=2)


def test_a_second_launcher_joins_as_another_node_and_goes_on_when_the_first_leaves(place: Place) -> None:
    script = str(place.script("s.py", GATED))
    common = ("run", "--job", "j", "--nnodes", "1:2")
    first = place.start(*common, "--node", "a", script, "gate")
    first.until("[a-0] up")
    refused = place.call(*common, "--node", "a", script, "gate", code=2)
    assert "node 'a' takes part in job 'j' already" in refused.shown
    different = place.call(*common, "--slots", "4", "--node", "b", script, "gate", code=2)
    assert "another number of slots: 0 there, 4 here" in different.shown
    second = place.start(*common, "--node", "b", script, "gate")
    second.until("node b joins job j")
    second.until("[b-0] up")
    assert len(place.pids("nats-server")) == 1
    full = place.call(*common, "--node", "c", script, "gate", code=2)
    assert "takes no more nodes: 2 of 2" in full.shown

    first.signal(signal.SIGTERM)
    first.until("this node drains, b go on")
    assert first.wait() == 143
    second.until("this one keeps it now")
    until(lambda: len(place.pids("reknit.services.")) == 4, "services beside the new keeper")
    place.open("gate")
    assert second.wait() == 0, second.shown
    assert "has been silent" not in second.shown
    place.nothing_left()


def noted(place: Place, job: str) -> set[int]:
    """Processes that run.json tells of."""
    nodes = json.loads((place.home / "jobs" / job / "run.json").read_text())["nodes"].values()
    return {mark["pid"] for node in nodes for mark in node["children"]}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_broker_services_and_agent_come_back(place: Place) -> None:
    run = place.start("run", "--job", "j", str(place.script("s.py", GATED)), "gate")
    run.until("up")
    for what, said in (
        ("reknit.services.shards", "shards (pid"),
        ("nats-server", "the broker died; starting it again"),
        ("reknit.services.membership", "membership (pid"),
    ):
        pid = place.pids(what)[0]
        os.kill(pid, signal.SIGKILL)
        run.until(said)
        until(lambda what=what, pid=pid: [p for p in place.pids(what) if p != pid], f"a new {what}")
        until(lambda what=what: set(place.pids(what)) <= noted(place, "j"), f"{what} in run.json")
    agent = min(place.pids("reknit.worker.agent"))
    os.kill(agent, signal.SIGKILL)
    run.until("agent (pid")
    until(lambda: sum("] up" in line for line in run.out) == 2, "the new agent starts the worker again")
    place.open("gate")
    assert run.wait() == 0, run.shown
    place.nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_closed_terminal_ends_no_training(place: Place) -> None:
    main, side = os.openpty()
    script = place.script("s.py", GATED)
    process = subprocess.Popen(
        [*REKNIT, "run", "--job", "j", str(script), "gate"],
        stdin=side,
        stdout=side,
        stderr=side,
        cwd=place.folder,
        env=place.env,
        start_new_session=True,
        preexec_fn=_own_terminal,  # noqa: PLW1509
    )
    os.close(side)
    try:
        until(lambda: "worker.started" in place.call("events", "--job", "j", code=None).shown, "a worker runs")
        os.close(main)  # the kernel sends SIGHUP, and writing fails from now on
        place.open("gate")
        assert process.wait(60.0) == 0
    finally:
        process.kill()
        process.wait()
    place.nothing_left()
    assert place.json("status")["state"] == "completed"


def _own_terminal() -> None:
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_works_with_an_empty_environment(place: Place) -> None:
    script = place.script("s.py", "import os\nprint(sorted(os.environ))\n")
    env = {"PATH": "/usr/bin:/bin", "HOME": str(place.folder)}
    process = subprocess.run(
        [Path(sys.executable).parent / "reknit", "run", "--job", "bare", script],
        env=env,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    assert (place.folder / ".local/state/reknit/jobs/bare/endpoint.json").exists()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_runs_at_the_same_time_make_one_job(place: Place) -> None:
    script = str(place.script("s.py", GATED))
    both = [place.start("run", "--job", "j", "--nnodes", "2", script, "gate") for _ in range(2)]
    for run in both:
        run.until("] up")
    place.open("gate")
    assert [run.wait() for run in both] == [0, 0], "\n\n".join(run.shown for run in both)
    events = place.json("events", "--area", "job,node")
    assert [row["event"]["kind"] for row in events].count("job.submitted") == 1
    assert len({row["event"]["node"] for row in events if row["event"]["kind"] == "node.joined"}) == 2
    place.nothing_left()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_nothing_listens_beyond_this_machine(place: Place) -> None:
    run = place.start("run", str(place.script("s.py", GATED)), "gate")
    run.until("] up")
    open_at = {
        connection.laddr.ip
        for pid in place.processes()
        for connection in psutil.Process(pid).net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }
    assert open_at == {"127.0.0.1"}
    place.open("gate")
    assert run.wait() == 0, run.shown


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import no_such_thing", "No module named 'no_such_thing'"),
        ("import argparse\np = argparse.ArgumentParser()\np.add_argument('--x', required=True)\np.parse_args()", "--x"),
    ],
)
def test_a_script_that_cannot_begin_is_tried_once_and_its_error_stands_last(
    place: Place, source: str, said: str
) -> None:
    run = place.call("run", "--node", "n", str(place.script("s.py", source)), code=1)
    end = run.err[next(i for i, line in enumerate(run.err) if "root cause" in line) :]
    assert any(said in line for line in end)
    assert sum(row["event"]["kind"] == "worker.started" for row in place.json("events")) == 1
    place.nothing_left()


def test_a_port_that_is_taken_is_named(place: Place) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        run = place.call("run", "--port", str(port), str(place.script("s.py", "")), code=2)
    assert f"port {port} is taken" in run.shown
    assert "--port" in run.shown
    place.nothing_left()


def test_a_broker_that_cannot_be_reached(place: Place) -> None:
    run = place.call("run", "--nats", "nats://user:password@127.0.0.1:1", str(place.script("s.py", "")), code=75)
    assert "127.0.0.1:1" in run.shown
    assert "password" not in run.shown
