"""The two links make one import tree, and nothing beside a user's script can take its place."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="an sdist holds files in place of the links")
@pytest.mark.parametrize("name", ["services", "worker"])
def test_link_is_committed_as_a_relative_link(name: str) -> None:
    link = ROOT / "src" / "reknit" / name

    assert link.is_symlink()
    assert link.readlink() == Path("../..", name)
    assert (link / "__init__.py").is_file()


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """A training script with folders and files beside it named like every folder of ours."""
    trap = 'raise RuntimeError(f"the user\'s {__name__} was imported")\n'
    for name in ("worker", "core", "cli"):
        (tmp_path / f"{name}.py").write_text(trap)
    for folder in ("services", "services/membership", "ring"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text(trap)
    train = tmp_path / "train.py"
    train.write_text(
        "import importlib, sys\nfor name in sys.argv[1:]:\n    print(importlib.import_module(name).__file__)\n"
    )
    return train


@pytest.mark.parametrize("launch", ["as a script", "as a module"])
def test_files_beside_the_script_shadow_nothing(script: Path, launch: str) -> None:
    names = ["reknit.core", "reknit.worker", "reknit.worker.ring", "reknit.services.membership"]
    how = [str(script)] if launch == "as a script" else ["-m", script.stem]

    run = subprocess.run([sys.executable, *how, *names], cwd=script.parent, capture_output=True, text=True, check=False)

    assert run.returncode == 0, run.stderr
    assert len(run.stdout.splitlines()) == len(names)
    assert str(script.parent) not in run.stdout


def test_the_users_own_files_stay_importable_to_the_user(script: Path) -> None:
    (script.parent / "worker.py").write_text("")

    run = subprocess.run(
        [sys.executable, str(script), "reknit.worker", "worker"],
        cwd=script.parent,
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[1] == str(script.parent / "worker.py")
