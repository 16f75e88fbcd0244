"""What `--discover` names: `dns:NAME[:PORT]`, `script:PATH` or `file:PATH`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Literal

from reknit.core import address
from reknit.core.errors import UsageError

GOSSIP_PORT = 7946
"""Port that is dialled for gossip where none is named; agents listen there only if they are told to."""


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """One place to look.

    Attributes:
        kind: `dns` tells where others gossip; `script` and `file` tell which hosts shall take part.
        where: the DNS name, or the absolute path.
        port: of `dns`: where they gossip.
    """

    kind: Literal["dns", "script", "file"]
    where: str
    port: int = 0

    def __str__(self) -> str:
        return f"{self.kind}:{address.join(self.where, self.port) if self.port else self.where}"


def parse(text: str) -> Source:
    """Read one `--discover`.

    Raises:
        UsageError: another kind, nothing behind the colon, or no address.
    """
    kind, _, where = text.strip().partition(":")
    where = where.strip()
    if kind not in {"dns", "script", "file"} or not where:
        raise UsageError(f"{text!r} is no way to find nodes", hint="write dns:NAME[:PORT], script:PATH or file:PATH")
    if kind == "dns":
        name, port = address.split(where, GOSSIP_PORT)
        return Source("dns", name, port)
    path = str(Path(where).expanduser().absolute())
    return Source("script", path) if kind == "script" else Source("file", path)


def parse_all(texts: list[str]) -> list[Source]:
    """Read several; at most one of them tells which hosts shall take part.

    Raises:
        UsageError: one is wrong, or there are two lists of hosts.
    """
    sources = [parse(text) for text in texts if text.strip()]
    lists = [str(source) for source in sources if source.kind != "dns"]
    if len(lists) > 1:
        raise UsageError(f"{' and '.join(lists)} would both tell which hosts take part", hint="leave one of them out")
    return sources
