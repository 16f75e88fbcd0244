"""A ring of real member processes (see `support.member`), forked with torch loaded, killed whatever happens."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from support import member
from support.crews import server

PATIENCE = 60.0


class MemberProcess:
    """One of them."""

    def __init__(self) -> None:
        context = server()  # a process has one server for all: who comes first says what it has loaded
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=member.main, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()
        self.port = self.asked("port")["answer"]

    def tell(self, do: str, **order: Any) -> None:
        self.pipe.send((do, order))

    def heard(self, seconds: float = PATIENCE) -> dict[str, Any] | None:
        """The next answer; None if there is none within so many seconds."""
        return self.pipe.recv() if self.pipe.poll(seconds) else None

    def hear(self) -> dict[str, Any]:
        answer = self.heard()
        assert answer is not None, "no answer"
        return answer

    def asked(self, do: str, **order: Any) -> dict[str, Any]:
        self.tell(do, **order)
        return self.hear()

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def end(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


class Members:
    """All of them."""

    def __init__(self, size: int) -> None:
        self.all = [MemberProcess() for _ in range(size)]

    def link(self, who: Sequence[MemberProcess] | None = None) -> None:
        """Make a ring of these (all)."""
        ring = list(who or self.all)
        for rank, one in enumerate(ring):
            one.tell("link", rank=rank, size=len(ring), port=ring[(rank + 1) % len(ring)].port)
        self.agreed(ring)

    def told(self, do: str, who: Sequence[MemberProcess] | None = None, **order: Any) -> list[dict[str, Any]]:
        """Tell all, hear all; no one may answer with an error."""
        ring = list(who or self.all)
        for one in ring:
            one.tell(do, **order)
        return self.agreed(ring)

    def agreed(self, ring: Sequence[MemberProcess]) -> list[dict[str, Any]]:
        answers = [one.hear() for one in ring]
        assert not any("error" in a for a in answers), answers
        return answers

    def end(self) -> None:
        for one in self.all:
            one.end()  # also one that is stopped
