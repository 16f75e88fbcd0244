"""The examples run as they are, alone and under the launcher; the demo tells its story to the end."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.launchers import Place

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A home of its own; whatever a test leaves running is ended."""
    place = Place(tmp_path)
    try:
        yield place
    finally:
        place.clean()


def alone(script: Path, *args: str, folder: Path) -> str:
    """Run a script without a launcher: a world of one."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("REKNIT_", "PET_"))} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *args]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def result_of(text: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.findall(r"\{.*\}", text)[0])
    return found


@pytest.mark.slow
def test_digits_gets_97_percent_right(tmp_path: Path) -> None:
    assert result_of(alone(EXAMPLES / "digits.py", folder=tmp_path))["accuracy"] > 0.97


def test_digits_gives_the_same_bits_alone_and_in_a_ring(place: Place) -> None:
    one = result_of(alone(EXAMPLES / "digits.py", "--epochs", "1", folder=place.folder))
    run = place.call(
        *("run", "--job", "digits", "--nproc-per-node", "2", "--threads", "1"),
        *(str(EXAMPLES / "digits.py"), "--epochs", "1"),
        within=90.0,
    )
    assert result_of(run.shown)["weights"] == one["weights"]


def test_charlm_learns_to_write(tmp_path: Path) -> None:
    out = alone(EXAMPLES / "charlm.py", "--epochs", "1", "--characters", "6000", folder=tmp_path)
    assert re.search(r"epoch 0: loss \d\.\d+", out)
    assert len(out) > 300


def test_the_script_of_the_readme_runs(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    blocks: list[str] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    script.write_text(next(block for block in blocks if "reknit.join()" in block))
    alone(script, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_the_demo_tells_its_story_to_the_end(tmp_path: Path) -> None:
    env = os.environ | {"TMPDIR": str(tmp_path)}
    command = [sys.executable, str(EXAMPLES / "demo.py"), "--json", "--kill", "0"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout
    story = json.loads(done.stdout)
    assert all(story["checks"].values())
    assert story["committed"]["after"] < story["replacement"]["active_after"]
    left = [file for file in tmp_path.iterdir() if not file.name.startswith("torchinductor_")]  # a habit of torch
    assert not left, "the demo left something behind"
