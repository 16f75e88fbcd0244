"""`make bench`: each benchmark as a process, its document and its verdict."""

from __future__ import annotations

import subprocess
import sys

import pytest
import run

SCRIPTS = {
    "fine.py": "print('{\"a\": 1}')",
    "misses.py": "import sys; print('{\"a\": 2}'); sys.exit(1)",
    "breaks.py": "raise SystemExit('no')",
    "hangs.py": "import time; time.sleep(600)",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in SCRIPTS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(run, "FOLDER", tmp_path)


def test_a_benchmark_is_judged_by_its_exit_status(folder):
    assert run.play(("fine.py",)) == ({"a": 1}, "")
    assert run.play(("misses.py",)) == ({"a": 2}, "misses its bar")
    assert run.play(("breaks.py",)) == (None, "printed no document, exit status 1")


def test_a_benchmark_that_hangs_is_ended(folder, monkeypatch):
    monkeypatch.setattr(run, "WITHIN", 0.5)
    assert run.play(("hangs.py",)) == (None, "not done within 0.5 s")


def test_one_that_misses_its_bar_is_enough(folder, monkeypatch, capsys):
    monkeypatch.setattr(run, "PARTS", {"one": ("fine.py",), "two": ("misses.py",)})
    assert run.main() == 1
    monkeypatch.setattr(run, "PARTS", {"one": ("fine.py",)})
    assert run.main() == 0


@pytest.mark.parametrize("script", sorted({words[0] for words in run.PARTS.values()}))
def test_the_flags_that_are_used_exist(script):
    done = subprocess.run(
        [sys.executable, str(run.FOLDER / script), "--help"], capture_output=True, text=True, timeout=100, check=True
    )
    used = {word for words in run.PARTS.values() if words[0] == script for word in words if word.startswith("--")}
    assert all(word in done.stdout for word in used | {"--json"})
    assert "Exit status 1" in done.stdout
