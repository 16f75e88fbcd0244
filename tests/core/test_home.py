from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reknit.core.context import Endpoint
from reknit.core.errors import UsageError
from reknit.core.home import Home, Mark, NodeRun, read_secret, secret_check
from support.agents import until

HOLD = """
import sys
from pathlib import Path
from reknit.core.home import Home
job = Home(Path(sys.argv[1])).job("j")
with job.control("run") as mine, job.claim("n") as named:
    print(mine, named, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def home(tmp_path: Path) -> Home:
    home = Home(tmp_path / "home")
    home.job("j").make()
    return home


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_only_the_owner_can_read(home: Home) -> None:
    job = home.job("j")
    job.keep_endpoint(Endpoint(url="nats://127.0.0.1:1", password="p"))
    assert job.endpoint() == Endpoint(url="nats://127.0.0.1:1", password="p")
    job.secret()
    job.note(NodeRun(node="n", run="r", launcher=Mark.of(os.getpid())), "n")
    assert {mode(job.path / name) for name in ("endpoint.json", "secret", "run.json")} == {0o600}
    assert {mode(path) for path in (job.path, job.logs, job.traces)} == {0o700}


def test_the_secret_is_made_once_also_by_many_at_once(home: Home) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(home.job("j").secret())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(found[0]) == 64
    assert not list(home.job("j").path.glob(".secret*"))


def test_the_check_of_a_secret_does_not_tell_it() -> None:
    assert secret_check("a", "job") != secret_check("b", "job")
    assert secret_check("a", "job") != secret_check("a", "other")
    assert len(secret_check("a", "job")) == 64


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_a_secret_file_that_cannot_serve(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "secret"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match="the secret file"):
        read_secret(file)


def test_control_and_claims_end_with_the_process_that_holds_them(home: Home) -> None:
    job = home.job("j")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(home.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline().split() == ["True", "True"]
        assert job.controlled
        assert job.holder() == f"run {holder.pid}"
        assert job.claimed() == {"n"}
        with job.control("read", wait=0.05) as mine:
            assert not mine
        with job.claim("n") as mine:
            assert not mine
    finally:
        holder.kill()
        holder.communicate()
    assert not job.controlled
    assert job.claimed() == set()
    with job.control("read") as mine:
        assert mine


def test_run_json_holds_living_launchers_only(home: Home) -> None:
    job = home.job("j")
    with subprocess.Popen(["sleep", "100"]) as other:
        job.note(NodeRun(node="a", run="r", launcher=Mark.of(other.pid)), "a", "/somewhere")
        job.note(NodeRun(node="b", run="r", launcher=Mark.of(os.getpid())), "b")
        assert set(job.runs().nodes) == {"a", "b"}
        other.kill()
    job.note(None, "c")
    assert set(job.runs().nodes) == {"b"}
    assert job.checkpoint_dir() == "/somewhere"
    job.note(None, "b")
    assert job.runs().nodes == {}


def test_a_mark_tells_a_process_from_a_later_one_of_its_pid() -> None:
    with subprocess.Popen(["sleep", "100"]) as process:
        mark = Mark.of(process.pid, "sleep")
        assert mark.alive
        assert not Mark(pid=process.pid, started=mark.started + 1).alive
        process.kill()
        until(lambda: not mark.alive, "a zombie counts as dead")
    assert not Mark.of(process.pid).alive


def test_jobs_newest_first(home: Home) -> None:
    for i, name in enumerate(("old", "new", "middle")):
        job = home.job(name)
        job.make()
        job.note(None, "n")
        os.utime(job.run_file, (100 + i, (100, 300, 200)[i]))
    os.utime(home.job("j").path, (1, 1))
    assert [job.name for job in home.jobs()] == ["new", "middle", "old", "j"]


def test_a_home_that_cannot_be_written() -> None:
    with pytest.raises(UsageError, match="cannot be used"):
        Home(Path("/proc/none")).job("j").make()


def test_job_names_are_checked(home: Home) -> None:
    with pytest.raises(UsageError, match="not a valid name"):
        home.job("../other")
