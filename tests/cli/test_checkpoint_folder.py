"""A folder that cannot hold checkpoints is found out before anything starts, with the reason."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from reknit.cli.checkpoint_folder import check, fault_of
from reknit.cli.entry import saving_here
from reknit.core.errors import UsageError
from reknit.core.events import JobSubmitted
from support.launchers import Place


def test_a_folder_that_can_be_made_is_made_and_nothing_is_left_in_it(tmp_path: Path) -> None:
    assert fault_of(tmp_path / "a" / "b", "j") == ""
    assert list((tmp_path / "a" / "b").iterdir()) == []
    (tmp_path / "a" / "b" / "j").mkdir()
    check(tmp_path / "a" / "b", "j")
    assert list((tmp_path / "a" / "b" / "j").iterdir()) == []


def test_a_link_to_a_folder_is_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert fault_of(tmp_path / "link" / "deeper", "j") == ""


def test_what_is_in_the_way_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    assert fault_of(file, "j") == f"{file} is not a directory"
    assert fault_of(file / "deeper", "j") == f"{file} is not a directory"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "j").touch()
    assert fault_of(tmp_path / "own", "j") == f"{tmp_path}/own/j is not a directory"
    dangling = tmp_path / "dangling"
    dangling.symlink_to(tmp_path / "nowhere")
    for where in (dangling, dangling / "deeper"):
        assert fault_of(where, "j") == f"{dangling} is a symbolic link to {tmp_path}/nowhere, which does not exist"
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    assert fault_of(loop, "j") == f"{loop} cannot be entered (Too many levels of symbolic links)"


def test_where_nothing_can_be_made() -> None:
    assert fault_of(Path("/proc/x"), "j") == "it cannot be made (No such file or directory)"


def test_several_nodes_may_look_at_once(tmp_path: Path) -> None:
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(fault_of(tmp_path / "a" / "b", "j"))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [""] * 16


# A folder that may be read only, and one without room; the file system is the process's own.
_OWN_MOUNTS = """
import subprocess, sys
from pathlib import Path
from reknit.cli.checkpoint_folder import fault_of
root = Path(sys.argv[1])
for name, options in (("locked", "size=1m,ro"), ("full", "size=16k")):
    (root / name).mkdir()
    argv = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", root / name]
    mounted = subprocess.run(argv, capture_output=True, text=True)
    if mounted.returncode:
        print("SKIP", mounted.stderr.strip()); sys.exit()
with open(root / "full" / "filler", "wb", buffering=0) as file:
    try:
        while True:
            file.write(b"x" * 4096)
    except OSError:
        pass
print(fault_of(root / "locked", "j"))
print(fault_of(root / "locked" / "deeper", "j"))
print(fault_of(root / "full", "j"))
"""


def test_a_folder_that_is_read_only_or_full(tmp_path: Path) -> None:
    user = ["--user", "--map-root-user"] if os.geteuid() != 0 else []
    argv = ["unshare", *user, "--mount", "--propagation", "private", sys.executable, "-c", _OWN_MOUNTS, str(tmp_path)]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=60)
    if "SKIP" in done.stdout or "unshare" in done.stderr:
        pytest.skip(f"no mount namespace here: {done.stdout}{done.stderr}")
    assert done.stdout.splitlines() == [
        f"nothing can be written into {tmp_path}/locked (Read-only file system)",
        "it cannot be made (Read-only file system)",
        f"nothing can be written into {tmp_path}/full (No space left on device)",
    ], done.stdout + done.stderr


def test_a_node_that_joins_must_be_able_to_write_where_the_run_does(tmp_path: Path) -> None:
    spec = JobSubmitted(run="r", script="t.py", checkpoint_dir="/proc/x")
    assert saving_here(spec, "j").endswith(
        "this node cannot write there: it cannot be made (No such file or directory); "
        "a polite stop will leave no last checkpoint"
    )
    for often in ({"checkpoint_every_steps": 5}, {"checkpoint_every_seconds": 5.0}):
        with pytest.raises(UsageError, match="job j keeps its checkpoints in /proc/x, and this node cannot write"):
            saving_here(JobSubmitted(run="r", script="t.py", checkpoint_dir="/proc/x", **often), "j")  # type: ignore[arg-type]
    fine = JobSubmitted(run="r", script="t.py", checkpoint_dir=str(tmp_path), checkpoint_every_steps=5)
    assert saving_here(fine, "j") == ""
    assert saving_here(JobSubmitted(run="r", script="t.py"), "j") == ""


# ------------------------------------------------------------------------------------------------- the command itself


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("s3://bucket/x", "checkpoint_dir must be a folder"),
        ("file:///tmp/x", "checkpoint_dir must be a folder"),
        ("/proc/x", "no checkpoint could be written to /proc/x: it cannot be made (No such file or directory)"),
        ("taken", "taken is not a directory"),
        ("dangling", "dangling is a symbolic link to nowhere, which does not exist"),
    ],
)
def test_a_run_that_could_not_save_does_not_begin(place: Place, where: str, said: str) -> None:
    script = place.script("s.py", "print('began')\n")
    (place.folder / "taken").touch()
    (place.folder / "dangling").symlink_to("nowhere")
    before = {path.name for path in place.folder.iterdir()}
    run = place.call("run", "--job", "j", "--checkpoint-dir", where, str(script), code=2)
    assert said in run.shown
    assert "Traceback" not in run.shown
    assert "began" not in run.shown
    place.nothing_left()
    assert {path.name for path in place.folder.iterdir()} - before <= {"home"}
    assert not (place.home / "jobs" / "j").exists(), "no job is left behind"
