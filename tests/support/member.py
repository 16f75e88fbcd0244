"""One member of a ring of real processes that makes groups and adds up arrays as told, through a pipe.

Everything but `abort` is done by one thread in the order it is told; `abort` at once, as a newer world would.
"""

from __future__ import annotations

import os
import queue
import socket
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from reknit.core.errors import ReknitError
from reknit.worker.ring.link import Link
from reknit.worker.ring.token import circulate
from reknit.worker.transport import gloo
from reknit.worker.transport.watch import Watch


class Member:
    def __init__(self) -> None:
        self.rank, self.size, self.generation = 0, 1, 0
        self.server = socket.create_server(("127.0.0.1", 0))
        self.links: list[Link] = []
        self.watch: Watch | None = None
        self.group: gloo.GlooGroup | None = None
        self.kept: list[Any] = []

    def port(self) -> int:
        return self.server.getsockname()[1]

    def link(self, rank: int, size: int, port: int) -> None:
        """Dial the next member, accept the previous one; a new generation each time."""
        self.part()
        self.rank, self.size = rank, size
        self.generation += 1
        out = socket.create_connection(("127.0.0.1", port), timeout=20)
        self.server.settimeout(20)
        come, _ = self.server.accept()
        self.links = [
            Link(come, "previous", self.generation, lambda: None),
            Link(out, "next", self.generation, lambda: None),
        ]
        self.watch = Watch(*self.links, lambda: False)

    def abort(self) -> None:
        """As a newer world does it: both links end."""
        for link in self.links:
            link.abort()

    def part(self) -> None:
        for link in self.links:
            link.close()
        if self.watch is not None:
            self.watch.close()
        self.links, self.watch = [], None

    def meet(self, connecting: float = gloo.CONNECTING) -> None:
        """Make a group over the links."""
        gloo.CONNECTING = connecting
        self.group = gloo.GlooGroup.meet(
            self.rank, self.size, "127.0.0.1", previous=self.links[0], following=self.links[1], watch=self.watch
        )

    def meet_and_freeze(self) -> None:
        """Tell the others an address, and then do nothing more: as one that is stopped just there."""
        making = gloo.making(self.rank, self.size, "127.0.0.1", self.watch.ring)
        making.start()
        self.watch.until(lambda: making.meeting.offer is not None)
        circulate(self.rank, self.size, *self.links, [[k, v] for k, v in making.meeting.offer.items()])
        self.kept.append(making)

    def sum(self, count: int, times: int = 1) -> int:
        """All-reduce integers of value rank+1; the first element."""
        for _ in range(times):
            tensor = torch.full((count,), self.rank + 1, dtype=torch.int64)
            work = self.group.start(tensor, self.watch.ring)
            self.watch.until(lambda work=work: work.done)
            work.check()
        return int(tensor[0])

    def close(self, seconds: float = 30.0) -> bool:
        """Close the group and the links; True if the group is gone within so many seconds."""
        group, self.group = self.group, None
        closed = group is None or group.closed(seconds)
        self.part()
        return closed

    def closing(self) -> bool:
        """True while a closed group lingers."""
        return any(t.name in {"gloo-close", "gloo-make"} for t in threading.enumerate())

    def residue(self) -> dict[str, int]:
        status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
        return {
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "threads": len(list(Path("/proc/self/task").iterdir())),
            "megabytes": int(status["VmRSS"].split()[0]) // 1024,
        }


def main(pipe: Connection) -> None:
    torch.set_num_threads(1)
    member = Member()
    orders: queue.Queue[tuple[str, dict[str, Any]]] = queue.Queue()

    def work() -> None:
        while True:
            do, order = orders.get()
            began = time.monotonic()
            try:
                answer = {"answer": getattr(member, do)(**order)}
            except ReknitError as error:
                answer = {"error": type(error).__name__, "text": str(error)}
            pipe.send({**answer, "seconds": time.monotonic() - began})

    threading.Thread(target=work, daemon=True).start()
    while True:
        try:
            do, order = pipe.recv()
        except EOFError:
            os._exit(0)
        if do == "abort":
            member.abort()
        else:
            orders.put((do, order))
