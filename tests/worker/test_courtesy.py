"""Niceness of processes and threads that nobody waits for, in real processes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from reknit.worker import courtesy
from reknit.worker.courtesy import BY, may_return, stand_back


def run(source: str) -> str:
    """Run it in a process of its own: niceness is a process's."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_thread_stands_back_alone() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    seen = []

    def serve() -> None:
        stand_back()
        seen.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))

    thread = threading.Thread(target=serve)
    thread.start()
    thread.join()
    assert seen == [min(19, before + BY)]
    assert os.getpriority(os.PRIO_PROCESS, 0) == before


@pytest.mark.skipif(not may_return(0), reason="this user may not lower niceness again")
def test_a_process_stands_back_with_all_it_has_and_comes_forward_again() -> None:
    said = run(
        """
        import os, subprocess, threading
        from reknit.worker import courtesy
        def nice(thread=0): return os.getpriority(os.PRIO_PROCESS, thread)
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        began = nice()
        stop, ready, ids = threading.Event(), threading.Barrier(3), []
        def work(back):
            if back: courtesy.stand_back()
            ids.append((back, threading.get_native_id()))
            ready.wait(); stop.wait()
        assert courtesy.begin()
        threads = [threading.Thread(target=work, args=(b,)) for b in (False, True)]
        for thread in threads: thread.start()
        child = subprocess.Popen(["sleep", "60"])
        ready.wait()
        of = dict(ids)
        print([n - began for n in (nice(), nice(of[False]), nice(of[True]), nice(child.pid))])
        courtesy.end()
        print([n - began for n in (nice(), nice(of[False]), nice(of[True]), nice(child.pid))])
        courtesy.end()
        print(nice() - began)
        stop.set(); child.kill(); child.wait()
        """
    )
    assert said.splitlines() == [
        str([BY, BY, min(19, 2 * BY), BY]),
        str([0, 0, min(19, 2 * BY), 0]),
        "0",
    ]


@pytest.mark.skipif(not may_return(0), reason="this user may not lower niceness again")
def test_a_process_stands_back_for_a_while_only() -> None:
    said = run(
        """
        import os, time
        from reknit.worker import courtesy
        courtesy.PATIENCE = 0.2
        before = os.getpriority(os.PRIO_PROCESS, 0)
        assert courtesy.begin()
        deadline = time.monotonic() + 60
        while os.getpriority(os.PRIO_PROCESS, 0) != before and time.monotonic() < deadline:
            time.sleep(0.01)
        print(os.getpriority(os.PRIO_PROCESS, 0) - before)
        """
    )
    assert said == "0"


@pytest.mark.skipif(not may_return(0) or not Path("/proc/self/autogroup").exists(), reason="no groups here")
def test_the_sessions_group_stands_back_by_as_much_whatever_our_own_niceness_is() -> None:
    said = run(
        """
        import os, pathlib
        from reknit.worker import courtesy
        os.setsid() if os.getpid() != os.getsid(0) else None
        os.setpriority(os.PRIO_PROCESS, 0, 3)
        def group(): return int(pathlib.Path("/proc/self/autogroup").read_text().split()[-1])
        before = group()
        courtesy.begin(); print(group() - before)
        courtesy.end(); print(group() - before)
        """
    )
    assert said.split() == [str(BY), "0"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody who may not")
def test_who_could_not_come_forward_again_does_not_stand_back() -> None:
    said = run(
        """
        import os, resource
        from reknit.worker import courtesy
        resource.setrlimit(resource.RLIMIT_NICE, (0, 0))
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        nice = os.getpriority(os.PRIO_PROCESS, 0)
        print(courtesy.may_return(nice), courtesy.begin(), os.getpriority(os.PRIO_PROCESS, 0) - nice)
        """
    )
    assert said == "False False 0"


def test_coming_forward_without_standing_back_is_nothing() -> None:
    before = os.getpriority(os.PRIO_PROCESS, 0)
    courtesy.end()
    assert os.getpriority(os.PRIO_PROCESS, 0) == before
