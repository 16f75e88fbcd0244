"""The user's script: found and read before anything is started."""

from __future__ import annotations

import dataclasses
import importlib.machinery
import sys
import traceback
from pathlib import Path

from reknit.core.errors import UsageError


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """What the workers run.

    Attributes:
        path: absolute path of the file.
        module: its name if it was given as `-m name`, else empty.
        args: what the user typed after it, untouched.
    """

    path: Path
    module: str
    args: tuple[str, ...]

    @property
    def name(self) -> str:
        """What tells one script from another on all nodes, wherever it lies there."""
        return self.module or self.path.name

    @property
    def stem(self) -> str:
        """Short name for the job."""
        return self.module.rpartition(".")[2] or self.path.stem

    @property
    def target(self) -> str:
        """What the agent is told: the module's name or the absolute path."""
        return self.module or str(self.path)


def find(script: str, args: tuple[str, ...], *, module: bool) -> Script:
    """Find the script and see that it compiles; nothing of it is run.

    Raises:
        UsageError: it does not exist, is not readable, or has a syntax error (which the text shows).
    """
    path = _module_file(script) if module else Path(script)
    if not module and not path.exists():
        hint = f"the working directory is {Path.cwd()}"
        if path.suffix != ".py" and path.with_suffix(".py").exists():
            hint = f"did you mean {path.with_suffix('.py')}?"
        raise UsageError(f"the script {script!r} does not exist", hint=hint)
    if path.is_dir():
        raise UsageError(f"the script {script!r} is a folder", hint="give a Python file, or a module with -m")
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UsageError(f"the script {script!r} cannot be read: {error.strerror or error}") from error
    try:
        compile(source, str(path), "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        shown = "".join(traceback.format_exception_only(error)).rstrip()
        raise UsageError(f"the script {script!r} does not compile\n{shown}") from error
    return Script(path.absolute(), script if module else "", args)


def _module_file(name: str) -> Path:
    """Where a module lies, found without running any package's `__init__`."""
    search: list[str] | None = [str(Path.cwd()), *sys.path]
    spec = None
    parts = name.split(".")
    for depth in range(len(parts)):
        spec = importlib.machinery.PathFinder.find_spec(".".join(parts[: depth + 1]), search)
        if spec is None:
            raise UsageError(f"there is no module {name!r}", hint=f"{'.'.join(parts[: depth + 1])!r} is not found")
        search = list(spec.submodule_search_locations) if spec.submodule_search_locations is not None else []
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.machinery.PathFinder.find_spec(f"{name}.__main__", search)
        if spec is None:
            raise UsageError(f"the package {name!r} has no __main__ module, so it cannot be run")
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise UsageError(f"the module {name!r} is no Python source file")
    return Path(spec.origin)
