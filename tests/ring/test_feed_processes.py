"""Members and candidates that are processes, killed and frozen by signals."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reknit.core.events import Member
from reknit.worker import side
from reknit.worker.backlog import Limit
from support.feeds import Course, PretendCandidate, Truth
from support.rings import wait_until

FLOATS = 2_000_000
"""Results and states of 8 MB: more than sockets take at once, so that a signal comes in the middle of one."""
TESTS = Path(__file__).parents[1]


class Process:
    def __init__(self, name: str) -> None:
        self.name = name
        self.child = subprocess.Popen(
            [sys.executable, "-m", "support.member_process", name, str(FLOATS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=TESTS,
            text=True,
        )
        self.address = ""

    @property
    def member(self) -> Member:
        self.begun()
        return Member(worker=self.name, incarnation=1, node=self.name, pid=self.child.pid, address=self.address)

    def begun(self) -> None:
        self.address = self.address or self.child.stdout.readline().strip()

    def step(self) -> int:
        self.begun()
        self.child.stdin.write("\n")
        self.child.stdin.flush()
        return int(self.child.stdout.readline())

    def signal(self, number: int) -> None:
        os.kill(self.child.pid, number)

    def end(self) -> None:
        self.child.kill()
        self.child.wait()
        self.child.stdin.close()
        self.child.stdout.close()


@pytest.fixture
def processes():
    made = {name: Process(name) for name in ("m0", "m1")}
    yield made
    for process in made.values():
        process.end()


@pytest.fixture
def candidate(processes):
    made = PretendCandidate("c", Truth(FLOATS))
    yield made
    made.close()


def follow(candidate: PretendCandidate, processes: dict[str, Process]) -> None:
    candidate.candidate.follow([p.member for p in processes.values()], 1, None)


def at(candidate: PretendCandidate, step: int) -> None:
    def there() -> bool:
        if candidate.error:
            raise candidate.error
        return candidate.at >= step

    wait_until(there, 60, what=f"{candidate.failures}")


_BEGIN = 1 << 16


class Held:
    """Holds a thread of the candidate back in the middle of its reading."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, thread: str, size: int) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()
        right = side.receive_into

        def receive_into(sock, view, each=None) -> None:
            if view.nbytes >= size and threading.current_thread().name == thread and not self.reached.is_set():
                right(sock, view[:_BEGIN], each)  # so little that the sockets' buffers have not grown
                self.reached.set()
                assert self.go_on.wait(60)
                view = view[_BEGIN:]
            right(sock, view, each)

        monkeypatch.setattr(side, "receive_into", receive_into)


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_feeder_that_is_killed_or_stopped_in_the_middle_of_a_result(processes, candidate, monkeypatch, number):
    monkeypatch.setattr(side, "SILENCE", 1.0)
    follow(candidate, processes)
    at(candidate, 0)
    feeder = processes[candidate.candidate.feeder]
    held = Held(monkeypatch, "candidate", FLOATS)
    for process in processes.values():
        process.step()
    assert held.reached.wait(60)
    feeder.signal(number)
    held.go_on.set()
    rest = [p for p in processes.values() if p is not feeder]
    at(candidate, 1)  # another one has that result too
    assert any(failure.startswith(feeder.name) for failure in candidate.failures)
    for process in rest:
        assert process.step() == 2
    at(candidate, 2)
    assert candidate.applied == [0, 1]
    assert candidate.loads == [0]


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_teacher_that_is_killed_or_stopped_in_the_middle_of_its_part(processes, candidate, monkeypatch, number):
    monkeypatch.setattr(side, "SILENCE", 1.0)
    for process in processes.values():
        process.step()
    held = Held(monkeypatch, "learn-part", FLOATS)
    follow(candidate, processes)
    assert held.reached.wait(60)
    victim = next(p for p in processes.values() if p.name != candidate.candidate.feeder)
    victim.signal(number)
    held.go_on.set()
    at(candidate, 1)
    for process in processes.values():
        if process is not victim:
            process.step()
    at(candidate, 2)
    assert candidate.loads == [1]


def test_a_candidate_process_that_is_stopped_delays_nobody_and_is_cut_off(monkeypatch):
    """Its kernel still takes what fits; then its backlog grows, and the member lets go of it."""
    monkeypatch.setattr(side, "SILENCE", 1.0)
    course = Course(["m0"], Truth(FLOATS), limit=Limit(32 << 20))
    code = (
        "import sys, threading\n"
        "from reknit.core.events import Member\n"
        "from support.feeds import PretendCandidate, Truth\n"
        "c = PretendCandidate('c', Truth(int(sys.argv[2])))\n"
        "c.candidate.follow([Member(worker='m0', incarnation=1, node='m0', pid=0, address=sys.argv[1])], 1, None)\n"
        "threading.Event().wait(120)\n"
    )
    member = course.members["m0"]
    child = subprocess.Popen([sys.executable, "-c", code, member.member.address, str(FLOATS)], cwd=TESTS)
    try:
        wait_until(lambda: member.copied, 60)
        course.advance(2)
        os.kill(child.pid, signal.SIGSTOP)
        course.advance(25)
        assert member.shared.step == 27
        wait_until(lambda: not member.feeder.fed, 60)
        with member.shared.cv:
            assert not any(result.holds for result in member.shared.results.values())
    finally:
        child.kill()
        child.wait()
        course.close()
