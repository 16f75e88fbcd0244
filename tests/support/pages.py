"""Examples of the documentation, run as they stand."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "docs" / "script.md"


def examples() -> dict[str, str]:
    """Heading and number -> whole script, with the lines that all of them begin with."""
    found: dict[str, str] = {}
    heading, begin = "", ""
    for part in re.split(r"(^## [^\n]*$|^```python\n.*?^```$)", PAGE.read_text(), flags=re.MULTILINE | re.DOTALL):
        if part.startswith("## "):
            heading = part[3:]
        elif part.startswith("```python"):
            code = part.removeprefix("```python\n").removesuffix("```")
            if not begin:
                begin = code
            else:
                found[f"{heading} {sum(k.startswith(heading) for k in found)}"] = begin + code
    return found


def run(_gate: Any, name: str, **_: Any) -> str:
    """Run one and return what it prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(examples()[name], f"script.md, {name}", "exec"), {"__name__": "__main__"})
    return out.getvalue()
