"""Whatever is killed with SIGKILL, nothing of a node stays behind: workers, their children, and those that hid."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from reknit.core.events import WorkerExited, WorkerStarted
from support.agents import AgentUnderTest, alive, until

Make = Callable[..., AgentUnderTest]

# children of all kinds: a plain one, one in a session of its own, one that a shell left behind,
# one that forked twice and changed its session without ever executing anything
FAMILY = """
import json, os, subprocess, sys, time
me = json.loads(os.environ["REKNIT_WORKER"])["worker"]
def known(pid):
    open(f"{me}.{pid}", "w").close()
known(subprocess.Popen(["sleep", "1000"]).pid)
known(subprocess.Popen(["sleep", "1001"], start_new_session=True).pid)
pids = subprocess.check_output("sleep 1002 >&2 & echo $!; setsid sleep 1003 >&2 & echo $!", shell=True, text=True)
for pid in pids.split():
    known(pid)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        known(os.getpid())
        time.sleep(1004)
    time.sleep({seen})
    os._exit(0)
os.wait()
print("family", flush=True)
time.sleep({lives})
""".replace("{seen}", "1.2")  # the agent looks at the process table once a second; then only it knows whose child it is
LASTING = FAMILY.replace("{lives}", "1000")


def children(one: AgentUnderTest, worker: str = "*") -> set[int]:
    """What the scripts started that is still there."""
    return {pid for file in one.folder.glob(f"{worker}.*") if (pid := _number(file.suffix)) and alive(pid)}


def _number(suffix: str) -> int:
    return int(suffix[1:]) if suffix[1:].isdecimal() else 0


def ready(one: AgentUnderTest, families: int) -> set[int]:
    """Wait until the n-th family is complete; all living processes of the node."""
    until(lambda: one.told().count("family") == families, "the families are there")
    return {p.pid for p in one.descendants()}


@pytest.mark.parametrize("victim", ["agent", "agent's group", "guard", "forkserver"])
def test_nothing_is_left(make_agent: Make, victim: str) -> None:
    one = make_agent(LASTING, nproc=2).submit().start()
    pids = ready(one, 2)
    before = [one.started(1), one.started(2)]
    assert len(children(one)) == 10
    assert children(one) < pids
    forkserver = psutil.Process(before[0].pid).ppid()
    guard = psutil.Process(forkserver).ppid()
    assert psutil.Process(guard).ppid() == one.pid
    match victim:
        case "agent":
            one.signal(signal.SIGKILL)
        case "agent's group":
            # a launcher that wants to be rid of it: the guard is in a session of its own
            os.killpg(one.pid, signal.SIGKILL)
        case "guard":
            os.kill(guard, signal.SIGKILL)
        case "forkserver":
            os.kill(forkserver, signal.SIGKILL)
    if victim.startswith("agent"):
        until(lambda: not any(map(alive, pids)), "all processes are gone", 1.0)
        return
    # the agent lives, says that its workers died, and begins again; only the resource tracker is still the same
    until(lambda: sum(map(alive, pids)) == 1, "all processes are gone", 2.0)
    assert {one.event(WorkerExited, 1).code, one.event(WorkerExited, 2).code} == {-9}
    again = [one.started(3), one.started(4)]
    assert {w.worker for w in again} == {w.worker for w in before}
    one.signal(signal.SIGTERM)
    assert one.wait() == 0


def test_the_children_of_a_killed_worker_end_before_its_successor_starts(make_agent: Make) -> None:
    one = make_agent(LASTING, nproc=2).submit().start()
    ready(one, 2)
    first, other = sorted((one.started(1), one.started(2)), key=lambda e: e.worker)
    one.register(first)
    theirs = children(one, other.worker)
    for round_ in range(2):
        ready(one, round_ + 2)
        mine = children(one, first.worker)
        assert len(mine) == 5
        os.kill(first.pid, signal.SIGKILL)
        first = one.started(round_ + 3)
        # ended, not only asked: the successor is forked after the last of them
        assert not any(map(alive, mine))
        assert children(one, other.worker) == theirs
        assert alive(other.pid)


@pytest.mark.parametrize("end", ["asked", "by itself"])
def test_an_orderly_end_leaves_nothing_either(make_agent: Make, end: str) -> None:
    one = make_agent(LASTING if end == "asked" else FAMILY.replace("{lives}", "0.5")).submit().start()
    pids = ready(one, 1)
    if end == "asked":
        one.signal(signal.SIGTERM)
    assert one.wait() == 0
    until(lambda: not any(map(alive, pids | children(one))), "all processes are gone", 1.0)


LOADER = """
import torch
from torch.utils.data import DataLoader, Dataset
class Squares(Dataset):
    def __len__(self):
        return 10_000_000
    def __getitem__(self, i):
        return torch.full((1000,), float(i))
for n, batch in enumerate(DataLoader(Squares(), batch_size=8, num_workers=4)):
    if n == 5:
        print("loads", flush=True)
"""


@pytest.mark.slow
def test_loader_processes_end_with_their_worker(make_agent: Make) -> None:
    one = make_agent(LOADER).submit().start({"REKNIT_PRELOAD": "numpy,torch,reknit.worker.child"})
    kills = 5  # each is answered with a longer pause
    shm = len(list(Path("/dev/shm").iterdir()))
    for i in range(kills):
        started = one.started(i + 1)
        one.register(started)
        until(lambda n=i + 1: one.told().count("loads") == n, "the loader works")
        mine = [p.pid for p in psutil.Process(started.pid).children(recursive=True)]
        assert len(mine) >= 4
        os.kill(started.pid, signal.SIGKILL)
        one.started(i + 2)
        assert not any(map(alive, mine))
    one.signal(signal.SIGTERM)
    assert one.wait() == 0
    assert len(list(Path("/dev/shm").iterdir())) <= shm + 2  # others work on this machine too
    assert len(one.events(WorkerStarted)) == kills + 1
