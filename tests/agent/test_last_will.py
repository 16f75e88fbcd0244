"""An agent that ends without a word: its guard says that the node is gone. Real processes, signals and locks."""

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from reknit.core.bus import Received
from reknit.core.context import Endpoint
from reknit.core.events import AgentJoined, AgentLeft, WorkerExited
from reknit.worker.agent import last_will
from reknit.worker.agent.last_will import LastWill
from support.agents import AgentUnderTest, alive, until

Make = Callable[..., AgentUnderTest]

FOREVER = """
import time
print("runs", flush=True)
while True:
    time.sleep(0.05)
"""


def running(make_agent: Make, nproc: int = 2) -> AgentUnderTest:
    one = make_agent(FOREVER, nproc=nproc).submit().start()
    until(lambda: one.told().count("runs") == nproc, "all run")
    guard_of(one)
    return one


def guard_of(one: AgentUnderTest) -> psutil.Process:
    """The guard, once its connection stands."""

    def connected() -> psutil.Process | None:
        for child in psutil.Process(one.pid).children():
            if any(c.status == psutil.CONN_ESTABLISHED for c in child.net_connections("tcp")):
                return child
        return None

    return until(connected, "the guard is connected")


def arrival(one: AgentUnderTest) -> int:
    received: list[Received] = one.bus.call(lambda bus: bus.backlog(job=one.job), timeout=30.0)
    return [r.seq for r in received if isinstance(r.event, AgentJoined)][-1]


@pytest.mark.parametrize("victims", ["agent", "agent and workers", "workers and agent", "agent's group"])
def test_its_guard_says_that_the_node_is_gone(make_agent: Make, victims: str) -> None:
    one = running(make_agent)
    pids = {p.pid for p in one.descendants()}
    workers = [one.started(1).pid, one.started(2).pid]
    match victims:
        case "agent":
            one.signal(signal.SIGKILL)
        case "agent and workers":
            for pid in (one.pid, *workers):
                with suppress(ProcessLookupError):  # its guard was quicker
                    os.kill(pid, signal.SIGKILL)
        case "workers and agent":
            for pid in (*workers, one.pid):
                with suppress(ProcessLookupError):  # its guard was quicker
                    os.kill(pid, signal.SIGKILL)
        case "agent's group":
            os.killpg(one.pid, signal.SIGKILL)
    left = one.event(AgentLeft)
    assert (left.node, left.arrival, left.swept) == ("w0", arrival(one), True)
    assert str(one.pid) in left.reason
    until(lambda: not any(map(alive, pids)), "all processes are gone")
    assert len(one.events(AgentLeft)) == 1


def test_no_temporary_folder_is_left(make_agent: Make, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    one = make_agent(FOREVER, folder="agent").submit().start({"TMPDIR": str(scratch)})
    one.says("runs")
    assert list(scratch.iterdir())
    one.signal(signal.SIGKILL)
    until(lambda: not list(scratch.iterdir()), "its temporary folder is gone")


def test_a_frozen_agent_is_not_gone(make_agent: Make) -> None:
    one = running(make_agent, nproc=1)
    one.signal(signal.SIGSTOP)
    worker = one.started(1).pid
    os.kill(worker, signal.SIGKILL)  # something happens meanwhile, and its agent cannot say so
    until(lambda: not alive(worker), "it is gone")
    assert not one.events(AgentLeft)
    one.signal(signal.SIGCONT)
    assert one.event(WorkerExited).code == -signal.SIGKILL
    assert not one.events(AgentLeft)


def test_an_agent_that_says_so_itself_needs_no_will(make_agent: Make) -> None:
    one = running(make_agent, nproc=1)
    pids = {p.pid for p in one.descendants()}
    one.signal(signal.SIGTERM)
    assert one.wait() == 0
    until(lambda: not any(map(alive, pids)), "all processes are gone")
    (left,) = one.events(AgentLeft)
    assert (left.arrival, left.swept) == (0, False)


def test_a_guard_that_took_the_place_of_another_has_the_will_too(make_agent: Make) -> None:
    one = running(make_agent, nproc=1)
    guard_of(one).kill()
    until(lambda: one.told().count("runs") == 2, "the worker runs again")
    guard_of(one)
    one.signal(signal.SIGKILL)
    assert one.event(AgentLeft).swept


def test_nobody_else_can_take_the_will_for_theirs(make_agent: Make) -> None:
    """Neither workers nor what they start see it in their environment."""
    source = FOREVER.replace('print("runs"', 'import os; print(sorted(os.environ), "runs"')
    one = make_agent(source).submit().start()
    one.says("runs")
    assert "REKNIT_AGENT_WILL" not in one.told()


def test_a_will_that_cannot_be_read_is_none() -> None:
    will = LastWill.write(Endpoint(url="nats://127.0.0.1:1"), "j", "w0")
    assert will is not None
    assert last_will.found(os.getpid(), will.text) is not None
    assert last_will.found(os.getpid(), "{}") is None
    assert last_will.found(os.getpid(), will.text.replace('"line":', '"line":9')) is None
