"""torchft in an environment of its own, outside the project: `python bench/torchft_venv.py` (`make bench-peers`).

It must never end in the project's environment or lock. The environment lies in the user's cache folder, so that it is
made once; `recovery.py --torchft-python PATH` takes another one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.2.0"
CONSTRAINTS = Path(__file__).resolve().parents[1] / "constraints.txt"
"""For torch, so that both systems compute with the same one."""
PATIENCE = 900.0


class NotInstalled(Exception):
    """torchft cannot be had here; the text says why."""


def folder() -> Path:
    """Where the environment lies."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "reknit-bench" / f"torchft-{VERSION}"


def python(chosen: Path | None = None) -> Path:
    """Return a Python that has torchft, after installing it if need be.

    Args:
        chosen: one that the user has made.

    Raises:
        NotInstalled: the chosen one has no torchft, or it cannot be installed.
    """
    place = folder()
    found = chosen or place / "bin" / "python"
    if chosen is None and not (place / "complete").exists():
        _install(place)
    # not resolved: what a venv's python is depends on the path that it is called by
    tried = subprocess.run([found, "-c", "import torchft"], capture_output=True, text=True, check=False)
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise NotInstalled(f"{found} cannot import torchft: {last}")
    return found


def _install(place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    wanted = ["-c", str(CONSTRAINTS), f"torchft=={VERSION}", "numpy"]
    print(f"installing torchft {VERSION} into {place}", file=sys.stderr, flush=True)
    for command in ([sys.executable, "-m", "venv", str(place)], [*pip, *wanted]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise NotInstalled(str(error)) from error
        if done.returncode:
            last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
            raise NotInstalled(f"{' '.join(command[1:4])}: {last}")
    (place / "complete").touch()


def main() -> int:
    try:
        print(python())
    except NotInstalled as error:
        print(f"torchft is not to be had: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
