"""The benchmarks end exactly what they have started."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
from job import NotInTime, wait_for
from offspring import Offspring

# starts a child of its own in a session of its own, ignores SIGTERM, and ends: an orphan is left
ORPHAN = """
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import signal, time; signal.signal(15, 1); time.sleep(600)"],
                 start_new_session=True)
"""


def test_orphans_are_found_by_their_mark_and_ended(tmp_path):
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with Offspring() as offspring:
            offspring.start([sys.executable, "-c", ORPHAN], tag="n1", log=tmp_path / "log", env={}, cwd=tmp_path).wait()
            (orphan,) = wait_for("the orphan", lambda: offspring.alive("n1"), 30.0)
            assert offspring.alive() == [orphan]
            assert offspring.alive("n2") == []
            offspring.end(grace=0.2)
        assert not psutil.pid_exists(orphan) or psutil.Process(orphan).status() == psutil.STATUS_ZOMBIE
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_tag_is_killed_alone(tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    with Offspring() as offspring:
        one = offspring.start(sleep, tag="n1", log=tmp_path / "log", env={}, cwd=tmp_path)
        two = offspring.start(sleep, tag="n10", log=tmp_path / "log", env={}, cwd=tmp_path)
        before = time.time()
        assert offspring.kill("n1") >= before
        assert one.wait(30) == -9
        assert offspring.alive("n10") == [two.pid]


def test_waiting_ends():
    assert wait_for("it", lambda: 7, 0.0) == 7
    with pytest.raises(NotInTime, match="the moon: not within 0 s"):
        wait_for("the moon", lambda: False, 0.0)
    with pytest.raises(NotInTime):
        wait_for("the first of many", list, 0.0)
