"""A worker that is killed is told as dying before it is reaped: real processes, real signals, real locks."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from reknit.core.events import (
    Event,
    WorkerDying,
    WorkerExited,
    WorkerFailed,
    WorkerFinished,
    WorkerStarted,
    WorkerStuck,
)
from reknit.worker.agent import lifeline
from reknit.worker.agent.deathwatch import Deathwatch
from reknit.worker.agent.lifeline import Lifeline
from support.agents import AgentUnderTest, alive, until

Make = Callable[..., AgentUnderTest]

FOREVER = """
import time
held = bytearray(b"x") * ({megabytes} << 20)
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""
FALLBACK = "deaths of workers are noticed when they are reaped, not before"


# ------------------------------------------------------------------------------------------------ one process, one lock


@contextmanager
def child(line: Lifeline, *, hold: bool = True, then: Callable[[], object] = signal.pause) -> Iterator[int]:
    """Fork a process that holds the line; killed and reaped at the exit."""
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            if hold:
                line.hold()
            os.write(told, b"x")
            then()
        finally:
            os._exit(0)
    try:
        os.read(ready, 1)
        yield pid
    finally:
        os.close(ready)
        os.close(told)
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(pid, 0)


def deathwatches() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("deathwatch")]


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def pages() -> int:
    return Path("/proc/self/maps").read_text().count("reknit-lifeline")


def made() -> Lifeline:
    line = Lifeline.make()
    line.sent()
    return line


def test_there_can_be_lifelines_here() -> None:
    assert lifeline.why_not() == ""


def test_the_end_of_a_process_is_told_before_there_is_something_to_reap() -> None:
    told: SimpleQueue[str] = SimpleQueue()
    line = made()
    with child(line) as pid:
        watch = Deathwatch(line, pid)
        assert watch.begin(lambda: told.put("dying"))
        assert watch.begin(lambda: told.put("dying")), "again is once"
        os.kill(pid, signal.SIGKILL)
        # nobody has waited for it, so its exit is not known to anybody: all the same
        assert told.get(timeout=30) == "dying"
        os.waitpid(pid, 0)
        watch.end()
    until(lambda: not deathwatches(), "the thread has ended")
    assert told.empty()


def test_a_stopped_process_holds_it() -> None:
    line = made()
    with child(line) as pid:
        os.kill(pid, signal.SIGSTOP)
        assert not line.broken(0.2)
        os.kill(pid, signal.SIGKILL)
        assert line.broken(30)
    line.close()


def test_a_process_that_is_forked_by_the_holder_has_no_part_in_it() -> None:
    def fork() -> None:
        if os.fork() == 0:
            os._exit(0)
        os.wait()
        signal.pause()

    line = made()
    with child(line, then=fork) as pid:
        assert not line.broken(0.3)
        assert line.holder == pid
    assert line.broken(30)
    line.close()


def test_an_exec_is_no_death() -> None:
    go, told = os.pipe()

    def execute() -> None:
        os.read(go, 1)
        os.execv(sys.executable, [sys.executable, "-c", "import signal; print(flush=True); signal.pause()"])

    line = made()
    heard: SimpleQueue[str] = SimpleQueue()
    with child(line, then=execute) as pid:
        watch = Deathwatch(line, pid)
        assert watch.begin(lambda: heard.put("dying"))
        os.write(told, b"x")
        until(lambda: not deathwatches(), "the watch is over")
        assert alive(pid)
        assert heard.empty()
        watch.end()
    os.close(go)
    os.close(told)


def test_who_holds_nothing_is_not_watched() -> None:
    line = made()
    with child(line, hold=False) as pid:
        watch = Deathwatch(line, pid)
        assert not watch.begin(pytest.fail)
        watch.end()
        assert not watch.begin(pytest.fail)
    assert not Deathwatch(None, 1).begin(pytest.fail)


def test_nothing_is_left_after_fifty() -> None:
    lifeline.why_not()
    before = descriptors(), pages()
    for number in range(50):
        line = made()
        with child(line) as pid:
            watch = Deathwatch(line, pid)
            if number % 3:
                watch.begin(lambda: None)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            watch.end()
    until(lambda: not deathwatches(), "all threads have ended")
    assert (descriptors(), pages()) == before


@pytest.mark.parametrize(
    ("name", "put", "why"),
    [
        ("confstr", None, "not the GNU C library"),
        ("confstr", "musl 1.2.5", "not the GNU C library"),
        ("memfd_create", OSError(38, "Function not implemented"), "Function not implemented"),
    ],
)
def test_where_there_can_be_none(monkeypatch: pytest.MonkeyPatch, name: str, put: object, why: str) -> None:
    def answer(*_: object) -> object:
        if isinstance(put, Exception):
            raise put
        return put

    monkeypatch.setattr(os, name, answer)
    assert why in lifeline.why_not()


def test_a_kernel_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lifeline, "broken", lambda *_: False)
    assert "does not tell" in lifeline.why_not()


# ------------------------------------------------------------------------------------------------------ a whole agent


def told_of(one: AgentUnderTest, started: WorkerStarted) -> list[Event]:
    """What the log has of one process's end, in its order."""
    kinds = (WorkerDying, WorkerExited, WorkerFailed)
    return [e for e in one.events(Event) if isinstance(e, kinds) and e.incarnation == started.incarnation]


def registered(one: AgentUnderTest) -> WorkerStarted:
    """A worker of the agent that runs and is watched."""
    one.says("runs")
    started = one.started()
    one.world(1, one.register(started))
    until(lambda: watchers(one) == 1, "it is watched")
    return started


def watchers(one: AgentUnderTest) -> int:
    """Threads of the agent that are in the kernel, waiting for a lifeline."""
    lines = []
    for row in Path(f"/proc/{one.pid}/maps").read_text().splitlines():
        if "reknit-lifeline" in row:
            first, _, end = row.split()[0].partition("-")
            lines.append(range(int(first, 16), int(end, 16)))
    waiting = 0
    for task in Path(f"/proc/{one.pid}/task").iterdir():
        with suppress(OSError, ValueError):
            # number of the system call, and what it is about
            _, about, *_ = (task / "syscall").read_text().split()
            waiting += any(int(about, 16) in line for line in lines)
    return waiting


@contextmanager
def nobody_reaps(started: WorkerStarted) -> Iterator[None]:
    """Hold the worker's parent: the worker can end, but that it has cannot be told by an exit status."""
    parent = psutil.Process(started.pid).ppid()
    os.kill(parent, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(parent, signal.SIGCONT)


def test_dying_comes_first_and_the_exit_does_the_rest(make_agent: Make) -> None:
    one = make_agent(FOREVER.format(megabytes=200)).submit().start()
    started = registered(one)
    with nobody_reaps(started):
        os.kill(started.pid, signal.SIGKILL)
        dying = one.event(WorkerDying)
        assert not one.events(WorkerExited)
    assert dying == WorkerDying(worker="w0-0", incarnation=started.incarnation, node="w0", pid=started.pid)
    exited = one.event(WorkerExited)
    assert (exited.code, exited.signal, exited.expected) == (-9, "SIGKILL", False)
    again = one.started(2)
    assert (again.worker, again.attempt) == ("w0-0", 1)
    until(lambda: watchers(one) == 0, "nobody waits any more")
    assert [type(e) for e in told_of(one, started)] == [WorkerDying, WorkerExited]


def test_the_first_that_ends_tells_of_the_others_that_were_killed_with_it(make_agent: Make) -> None:
    one = make_agent(FOREVER.format(megabytes=1), nproc=3).submit().start()
    until(lambda: one.told().count("runs") == 3, "all run")
    started = [one.started(n) for n in (1, 2, 3)]
    one.world(1, *(one.register(s) for s in started))
    until(lambda: watchers(one) == 3, "they are watched")
    with nobody_reaps(started[0]):  # else one of them may be gone altogether before the other is told of
        one.signal(signal.SIGSTOP)  # it hears of neither before both are killed
        for victim in started[:2]:
            os.kill(victim.pid, signal.SIGKILL)
        one.signal(signal.SIGCONT)
        first = one.event(WorkerDying)
    told = {first.worker: first.pid, **first.others}
    assert told == {s.worker: s.pid for s in started[:2]}


def test_a_stopped_worker_is_not_dying_until_it_is_killed(make_agent: Make) -> None:
    one = make_agent(FOREVER.format(megabytes=1), evict_grace=0.5).submit().start()
    started = registered(one)
    os.kill(started.pid, signal.SIGSTOP)
    one.event(WorkerStuck)
    assert not told_of(one, started)
    with nobody_reaps(started):
        one.world(2)  # out of the world, and not back in time: its agent kills it
        one.event(WorkerDying)
    one.event(WorkerExited)
    assert [type(e) for e in told_of(one, started)] == [WorkerDying, WorkerExited]


ENDS = """
import os, time
print("runs", flush=True)
while not os.path.exists("go"):
    time.sleep(0.02)
"""


def test_a_script_that_ends_in_mid_run(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent(ENDS).submit().start()
    started = registered(one)
    with nobody_reaps(started):
        (tmp_path / "go").touch()
        one.event(WorkerDying)
    exited = one.event(WorkerExited)
    assert (exited.code, exited.expected) == (0, False)


def test_a_script_that_raises(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent(ENDS + "raise ValueError('boom')").submit().start()
    started = registered(one)
    with nobody_reaps(started):
        (tmp_path / "go").touch()
        one.event(WorkerFailed)
        until(lambda: not alive(started.pid), "it has ended")
    one.event(WorkerExited)
    # its own word is the first; the agent may or may not have heard it when the process ends
    said = [type(e) for e in told_of(one, started)]
    assert said in ([WorkerFailed, WorkerExited], [WorkerFailed, WorkerDying, WorkerExited])


def test_who_has_finished_does_not_die(make_agent: Make, tmp_path: Path) -> None:
    one = make_agent(ENDS).submit().start()
    started = registered(one)
    one.publish(WorkerFinished(worker="w0-0", incarnation=started.incarnation, generation=1, step=9))
    one.targets(w0=2)  # acted on, so what came before it is heard
    one.started(2)
    with nobody_reaps(started):
        (tmp_path / "go").touch()
        until(lambda: watchers(one) == 0, "its end was noticed")
    until(lambda: told_of(one, started), "its exit")
    (exited,) = told_of(one, started)
    assert isinstance(exited, WorkerExited)
    assert exited.expected


def test_an_exec_by_the_script_is_no_death(make_agent: Make, tmp_path: Path) -> None:
    other = "import time; print('other', flush=True); time.sleep(600)"
    one = make_agent(ENDS + f"import sys; os.execv(sys.executable, [sys.executable, '-c', {other!r}])").submit().start()
    started = registered(one)
    (tmp_path / "go").touch()
    one.says("other")
    until(lambda: watchers(one) == 0, "its lock is gone")
    assert alive(started.pid)
    assert not told_of(one, started)
    os.kill(started.pid, signal.SIGKILL)
    assert one.event(WorkerExited).code == -9
    assert [type(e) for e in told_of(one, started)] == [WorkerExited]


def test_the_agent_is_killed_with_its_watches(make_agent: Make) -> None:
    one = make_agent(FOREVER.format(megabytes=1)).submit().start()
    started = registered(one)
    one.signal(signal.SIGKILL)
    one.wait()
    until(lambda: not alive(started.pid), "its worker ends with it", 5)
    assert not told_of(one, started)


def test_without_lifelines_the_exit_is_the_first_word(make_agent: Make, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.confstr = lambda _: None\n")
    one = make_agent(FOREVER.format(megabytes=1), nproc=2).submit().start({"PYTHONPATH": str(tmp_path)})
    one.says("runs")
    started = [one.started(1), one.started(2)]
    one.world(1, *(one.register(s) for s in started))
    os.kill(started[0].pid, signal.SIGKILL)
    one.event(WorkerExited)
    one.started(3)
    assert not one.events(WorkerDying)
    assert one.told().count(FALLBACK) == 1
    assert "not the GNU C library" in one.told()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nothing_is_left_in_an_agent_after_fifty_deaths(make_agent: Make) -> None:
    one = make_agent(ENDS, nproc=50).submit().start()
    workers = [one.started(n + 1) for n in range(50)]
    for started in workers:
        one.register(started)
    until(lambda: watchers(one) == 50, "all are watched")
    for number, started in enumerate(workers):
        os.kill(started.pid, signal.SIGKILL if number % 2 else signal.SIGTERM)
    one.event(WorkerExited, 50)
    one.started(100)
    until(lambda: watchers(one) == 0, "nobody waits any more")
    held = psutil.Process(one.pid)
    # one page and no descriptor for each of those that run now
    maps = Path(f"/proc/{one.pid}/maps").read_text()
    assert maps.count("reknit-lifeline") == 50
    assert not [f for f in Path(f"/proc/{one.pid}/fd").iterdir() if "lifeline" in str(f.readlink())]
    assert held.num_threads() < 30
