"""What decides has no clock, no chance and no I/O: checked on the imports of every module here."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from reknit.services import membership

FOLDER = Path(membership.__file__).parent
IMPURE = {"asyncio", "time", "random", "os", "socket", "nats", "secrets", "threading", "subprocess", "pathlib"}
PROCESS = {"app.py", "__main__.py"}
CORE = {"reknit.core.events"}
"""What the deciding modules may use of the core; `decide` also takes the runner's types of inputs and outputs."""


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            found.add(node.module)
    return found


@pytest.mark.parametrize("path", sorted(p for p in FOLDER.glob("*.py") if p.name not in PROCESS), ids=lambda p: p.stem)
def test_a_deciding_module_is_pure(path: Path) -> None:
    used = imports(path)
    assert not {name.partition(".")[0] for name in used} & IMPURE
    allowed = CORE | ({"reknit.core.service"} if path.stem == "decide" else set())
    assert {name for name in used if name.startswith("reknit")} <= allowed
