"""What a node says of itself, as text: `rack=r7,zone=b`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from reknit.core.errors import UsageError

MOST_BYTES = 256
"""Of all labels of a node as text: they travel in datagrams."""
HOSTNAME = "hostname"
"""Label that every node has: the host's own name, by which lists of hosts may call it."""
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_VALUE = re.compile(r"[A-Za-z0-9_.:/-]+")


def parse(said: str | Iterable[str] | Mapping[str, object]) -> dict[str, str]:
    """Read labels, from one text with commas, from several, or from a table.

    Raises:
        UsageError: a label is not `KEY=VALUE`, is said twice with two values, or they are too long together.
    """
    if isinstance(said, Mapping):
        said = [f"{key}={value}" for key, value in said.items()]
    texts = [said] if isinstance(said, str) else list(said)
    labels: dict[str, str] = {}
    for part in (part.strip() for text in texts for part in text.split(",")):
        if not part:
            continue
        key, _, value = part.partition("=")
        if not (_KEY.fullmatch(key) and _VALUE.fullmatch(value)):
            raise UsageError(f"the label {part!r} is not KEY=VALUE", hint="write --label rack=r7")
        if labels.setdefault(key, value) != value:
            raise UsageError(f"the label {key!r} is said twice: {labels[key]!r} and {value!r}", hint="leave one out")
    if len(text_of(labels).encode()) > MOST_BYTES:
        raise UsageError(f"the labels are longer than {MOST_BYTES} characters together", hint="leave some out")
    return labels


def text_of(labels: Mapping[str, str]) -> str:
    """Return labels as the text that `parse` reads, sorted."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))
