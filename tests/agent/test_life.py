"""Workers that die, freeze, are evicted, drained and stopped: real processes, real signals."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from reknit.core.bus_thread import BusThread
from reknit.core.events import (
    AgentJoined,
    AgentLeft,
    DrainAsked,
    JobStopAsked,
    NodePulse,
    WorkerExited,
    WorkerFinished,
    WorkerStarted,
    WorkerStuck,
)
from support.agents import AgentUnderTest, alive, until

Make = Callable[..., AgentUnderTest]

FOREVER = """
import os, time
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""
# what a session does with SIGTERM: it goes on to the end of its step, saves, and exits with 0
DRAINS = """
import sys, threading, time, types
asked = threading.Event()
class Current:
    step, slot, samples = 1, -1, ()
    def drain(self, reason):
        print("drain", reason, flush=True)
        asked.set()
sys.modules["reknit.worker.live"] = types.SimpleNamespace(current=lambda: Current())
print("runs", flush=True)
while not asked.wait(0.05):
    pass
time.sleep({save})
open("saved.txt", "w").write("saved")
"""


def test_a_killed_worker_is_started_again(make_agent: Make) -> None:
    one = make_agent(FOREVER, nproc=2).submit().start()
    first, second = one.started(1), one.started(2)
    one.register(first)
    os.kill(first.pid, signal.SIGKILL)
    exited = one.event(WorkerExited)
    assert (exited.worker, exited.incarnation, exited.pid) == (first.worker, first.incarnation, first.pid)
    assert (exited.code, exited.signal, exited.expected, exited.out_of_memory) == (-9, "SIGKILL", False, False)
    again = one.started(3)
    assert (again.worker, again.attempt) == (first.worker, 1)
    assert again.incarnation > first.incarnation
    assert alive(second.pid)
    one.says("killed by signal 9 (SIGKILL), possibly out of memory")
    until(lambda: one.log(first.worker).count("runs") == 2, "both processes in one log")


def test_drain_by_signal_waits_for_the_step(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent(DRAINS.format(save=0.7), grace=20.0).submit().start()
    one.says("runs")
    one.signal(signal.SIGTERM)
    assert one.wait() == 0
    assert (tmp_path / "saved.txt").exists()
    assert "drain SIGTERM" in one.told()
    exited = one.event(WorkerExited)
    assert (exited.code, exited.expected) == (0, True)
    assert one.event(AgentLeft).reason == "SIGTERM"


def test_drain_does_not_wait_longer_than_the_grace(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent(DRAINS.format(save=600), grace=0.3).submit().start()
    one.says("runs")
    one.publish(DrainAsked(target="w0", reason="maintenance"))
    assert one.wait() == 0
    assert not (tmp_path / "saved.txt").exists()
    exited = one.event(WorkerExited)
    assert (exited.code, exited.expected) == (-9, True)
    assert one.event(AgentLeft).reason == "drained: maintenance"
    one.says("did not leave in time (drained: maintenance): killed")


def test_a_script_without_a_session_ends_on_the_first_word(make_agent: Make) -> None:
    one = make_agent(FOREVER).submit().start()
    one.says("runs")
    one.publish(JobStopAsked(reason="enough"))
    assert one.wait() == 0
    exited = one.event(WorkerExited)
    assert (exited.code, exited.expected) == (143, True)


def test_a_second_signal_ends_it_at_once(make_agent: Make) -> None:
    one = make_agent(DRAINS.format(save=600), grace=600.0, nproc=2).submit().start()
    until(lambda: one.told().count("runs") == 2, "both run")
    below = one.descendants()
    one.signal(signal.SIGINT)
    one.says("drain SIGTERM")
    one.signal(signal.SIGTERM)
    assert one.wait(10) == 143
    until(lambda: not any(alive(p.pid) for p in below), "nothing is left", 2)


def test_hangups_are_survived(make_agent: Make) -> None:
    one = make_agent(FOREVER).submit().start()
    one.says("runs")
    pid = one.started().pid
    one.signal(signal.SIGHUP)
    os.kill(pid, signal.SIGHUP)
    os.kill(pid, signal.SIGINT)
    one.publish(DrainAsked(target="w0"))
    assert one.wait() == 0
    assert one.event(WorkerExited).code == 143


def test_a_stopped_worker_is_seen(make_agent: Make) -> None:
    one = make_agent(FOREVER).submit().start()
    one.says("runs")
    started = one.started()
    os.kill(started.pid, signal.SIGSTOP)
    stuck = one.event(WorkerStuck)
    assert (stuck.worker, stuck.incarnation, stuck.state) == (started.worker, started.incarnation, "T stopped")
    assert 0.5 < stuck.seconds < 3
    os.kill(started.pid, signal.SIGCONT)
    assert one.event(WorkerStuck, 2).state == "R running"


def test_an_evicted_worker_that_does_not_come_back(make_agent: Make) -> None:
    one = make_agent(FOREVER, evict_grace=0.5).submit().start()
    one.says("runs")
    started = one.started()
    member = one.register(started)
    one.world(1, member)
    os.kill(started.pid, signal.SIGSTOP)
    one.world(2)
    again = one.started(2)
    assert again.worker == started.worker
    exited = one.event(WorkerExited)
    assert (exited.code, exited.expected, exited.pid) == (-9, False, started.pid)
    one.says("was ended by its agent (evicted, and not back within 0.5 s)")


def test_the_scripts_go_on_after_the_last_step(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent(
        """
        import os, time
        print("runs", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.02)
        open("evaluated.txt", "w").write("done")
        """,
        grace=0.1,
    ).submit()
    one.start()
    one.says("runs")
    started = one.started()
    one.world(1, one.register(started))
    one.publish(WorkerFinished(worker=started.worker, incarnation=started.incarnation, generation=1, step=9))
    one.finished("completed")
    # longer than the grace, which is for those who were asked to leave
    time.sleep(0.5)
    assert alive(started.pid)
    (tmp_path / "go").touch()
    assert one.wait() == 0
    assert (tmp_path / "evaluated.txt").exists()
    exited = one.event(WorkerExited)
    assert (exited.code, exited.expected, exited.last_step) == (0, True, 9)


def test_the_last_line_is_the_root_cause(make_agent: Make) -> None:
    one = make_agent(
        """
        import json, os, time
        me = json.loads(os.environ["REKNIT_WORKER"])["worker"]
        if me.endswith("-1"):
            raise ValueError("boom")
        print("runs", flush=True)
        time.sleep(600)
        """,
        nproc=2,
    ).submit()
    one.start()
    one.says("runs")
    exited = one.event(WorkerExited)
    assert exited.worker == "w0-1"
    one.finished("failed", "w0-1 raised ValueError: boom", "w0-1")
    assert one.wait(10) == 1
    lines = one.err.read_text().splitlines()
    root = lines.index("[w0] the run failed: w0-1 raised ValueError: boom")
    assert lines[root + 1] == f"[w0] it began with w0-1, see {exited.log}"
    assert lines[-1] == "[w0]   ValueError: boom"


def test_more_and_fewer_workers(make_agent: Make) -> None:
    one = make_agent(DRAINS.format(save=0)).submit().start()
    first = one.started()
    one.targets(w0=3)
    assert {one.started(2).worker, one.started(3).worker} == {"w0-1", "w0-2"}
    until(lambda: one.told().count("runs") == 3, "three run")
    one.targets(w0=1)
    gone = {one.event(WorkerExited, 1).worker, one.event(WorkerExited, 2).worker}
    assert gone == {"w0-1", "w0-2"}
    assert alive(first.pid)
    assert all(e.expected for e in one.events(WorkerExited))


def test_nodes_leave_one_at_a_time(make_agent: Make) -> None:
    nodes = [make_agent(DRAINS.format(save=0), folder=f"n{i}", node=f"n{i}", job="leaving-job") for i in range(3)]
    nodes[0].submit()
    for node in nodes:
        node.start()
    until(lambda: all("runs" in node.told() for node in nodes), "all run")
    pids = {e.node: e.pid for e in nodes[0].events(WorkerStarted)}
    for i in (1, 0, 2):
        nodes[i].signal(signal.SIGTERM)
        assert nodes[i].wait() == 0
        assert nodes[0].events(AgentLeft)[-1].node == f"n{i}"
        left = {e.node for e in nodes[0].events(AgentLeft)}
        assert all(alive(pid) for name, pid in pids.items() if name not in left)
    assert len(nodes[0].events(WorkerStarted)) == 3


def test_a_node_that_comes_back(make_agent: Make) -> None:
    """An agent killed and started again at once: other workers, higher incarnations, no trace of the old drain."""
    one = make_agent(FOREVER).submit()
    one.start()
    before = []
    for round_ in range(3):
        started = one.started(round_ + 1)
        assert started.incarnation > max(before, default=0)
        before.append(started.incarnation)
        if round_ == 1:
            one.publish(DrainAsked(target="w0"))
            assert one.wait() == 0
        else:
            one.signal(signal.SIGKILL)
            one.wait()
            until(lambda pid=started.pid: not alive(pid), "its worker ends with it", 2)
        one.start()
    one.started(4)
    assert len(one.events(AgentJoined)) == 4


def test_a_second_agent_of_the_name_is_refused_by_name_and_the_first_does_not_notice(make_agent: Make) -> None:
    one = make_agent(FOREVER).submit().start()
    old = one.started()
    two = make_agent(FOREVER, folder="two", job=one.job).start()
    assert two.wait(10) == 2
    two.says(f"node 'w0' takes part in job '{one.job}' already: agent pid {one.pid} on ")
    assert not two.descendants()
    assert alive(old.pid)
    assert len(one.events(AgentJoined)) == len(one.events(WorkerStarted)) == 1


def test_a_second_agent_takes_the_name_of_one_that_does_not_answer(make_agent: Make) -> None:
    """Stopped for a while: its name is free then, and when it goes on it leaves."""
    one = make_agent(FOREVER).submit().start()
    old = one.started()
    one.signal(signal.SIGSTOP)
    try:
        two = make_agent(FOREVER, folder="two", job=one.job).start()
        assert two.started(2).incarnation > old.incarnation
    finally:
        one.signal(signal.SIGCONT)
    assert one.wait(10) == 1
    one.says("has taken the name w0")
    until(lambda: not alive(old.pid), "its worker ends with it")


@pytest.mark.slow
def test_a_process_that_is_not_reaped(make_agent: Make) -> None:
    """A tracer that never waits keeps the killed worker a zombie: the agent names it and goes."""
    one = make_agent(FOREVER, grace=0.2).submit().start()
    one.says("runs")
    pid = one.started().pid
    seize = (
        "import ctypes, sys, time; done = ctypes.CDLL(None).ptrace(0x4206, int(sys.argv[1]), 0, 0); "
        "print(done, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", seize, str(pid)], stdout=subprocess.PIPE) as tracer:
        try:
            assert tracer.stdout is not None
            if tracer.stdout.readline() != b"0\n":
                pytest.skip("ptrace is not allowed here")
            one.signal(signal.SIGTERM)
            assert one.wait(20) == 0
            one.says(f"PID {pid} not reaped")
        finally:
            tracer.kill()


def test_heartbeats_of_the_node(make_agent: Make) -> None:
    one = make_agent(FOREVER).submit().start()
    one.says("runs")
    pid = one.started().pid
    os.kill(pid, signal.SIGSTOP)
    heard: list[NodePulse] = []
    bus = BusThread(one.endpoint, "test")
    bus.start()
    try:
        bus.pulses(lambda _job, pulse: heard.append(pulse) if isinstance(pulse, NodePulse) else None, job=one.job)
        until(lambda: heard and heard[-1].workers == {"w0-0": "T"}, "the node says that its worker is stopped")
    finally:
        bus.close()
    assert heard[-1].memory_free > 0
    os.kill(pid, signal.SIGCONT)


def test_nobody_reads_what_it_shows(make_agent: Make) -> None:
    """A launcher that stands still (a terminal after Ctrl-S) holds up neither workers nor the agent."""
    out, into = os.pipe()
    one = make_agent(
        """
        for i in range(20000):
            print("x" * 200)
        open("done.txt", "w").write("done")
        import time
        time.sleep(600)
        """
    ).submit()
    one.start(stdout=into)
    os.close(into)
    until((one.folder / "done.txt").exists, "the script is through")
    one.publish(DrainAsked(target="w0"))
    assert one.wait() == 0
    assert one.log().count("x" * 200) == 20000
    os.close(out)


def test_the_launcher_is_gone(make_agent: Make) -> None:
    """Its pipe is closed: writing to it is refused, training goes on."""
    out, into = os.pipe()
    one = make_agent("import time\nfor i in range(100000):\n    print(i, flush=True); time.sleep(0.02)").submit()
    one.start(stdout=into)
    os.close(into)
    one.started()
    os.close(out)
    until(lambda: "\n30\n" in one.log(), "it goes on")
    one.signal(signal.SIGTERM)
    assert one.wait() == 0


def _memory_cgroup() -> Path | None:
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
        if number == "0" and (Path("/sys/fs/cgroup") / path.lstrip("/") / "memory.events").exists():
            return Path("/sys/fs/cgroup") / path.lstrip("/")
    return None


def test_out_of_memory(make_agent: Make) -> None:
    above = _memory_cgroup()
    if above is None or os.geteuid() != 0:
        pytest.skip("no memory cgroup, or not root")
    group = above / f"reknit-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if (group / "memory.limit_in_bytes").exists() else "memory.max")
        limit.write_text(str(150 * 1024 * 1024))
    except OSError as error:
        pytest.skip(f"cgroups cannot be made here: {error}")
    try:
        one = make_agent(
            """
            import time
            print("runs", flush=True)
            while not __import__("os").path.exists("go"):
                time.sleep(0.02)
            hog = [bytearray(b"x") * (1 << 20) for _ in range(1000)]
            """
        ).submit()
        one.start()
        one.says("runs")
        for process in [psutil.Process(one.pid), *one.descendants()]:
            (group / "cgroup.procs").write_text(str(process.pid))
        (one.folder / "go").touch()
        exited = one.event(WorkerExited)
        assert (exited.code, exited.out_of_memory) == (-9, True)
        one.says("out of memory: the kernel's OOM killer chose it")
        one.end()
    finally:
        until(lambda: not (group / "cgroup.procs").read_text().strip(), "the cgroup is empty")
        group.rmdir()


@pytest.mark.slow
def test_a_forkserver_that_cannot_start(make_agent: Make, tmp_path: Path) -> None:
    (tmp_path / "deadly.py").write_text("import os; os._exit(3)")
    one = make_agent(FOREVER).submit().start({"PYTHONPATH": str(tmp_path), "REKNIT_PRELOAD": "deadly"})
    assert one.wait() == 1
    assert one.told().count("could not be started") >= 5
    assert "given up: 5 failures in a row" in one.told()


def test_the_context_is_not_given(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "reknit.worker.agent"],
        env={k: v for k, v in os.environ.items() if k != "REKNIT_AGENT"},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "REKNIT_AGENT is not set" in done.stderr
    assert json.dumps(done.stdout) == '""'
