"""A transport that a machine has not is refused before anything is started on it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from support.launchers import Place

SCRIPT = "print('it runs', flush=True)\n"


@pytest.fixture
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch sees it, this machine has no GPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("without_gpu")
def test_nccl_without_a_gpu_begins_nothing(place: Place) -> None:
    script = str(place.script("s.py", SCRIPT))
    run = place.call("run", "--job", "j", "--node", "n", "--transport", "nccl", script, code=2)
    assert "error: node n cannot take part: transport nccl needs CUDA, and " in run.shown
    assert "use --transport tcp" in run.shown
    assert "Traceback" not in run.shown
    assert "it runs" not in run.shown
    assert "there is no job 'j'" in place.call("status", "--job", "j", code=2).shown, "nothing has begun"
    place.nothing_left()


@pytest.mark.usefixtures("without_gpu")
def test_what_a_machine_has_is_told_by_the_exit_status() -> None:
    def ask(name: str) -> tuple[int, str]:
        command = [sys.executable, "-m", "reknit.worker.transport.here", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout

    assert ask("tcp") == (0, "")
    code, said = ask("nccl")
    assert (code, "needs CUDA" in said) == (2, True)
