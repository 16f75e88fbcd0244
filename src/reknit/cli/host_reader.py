"""The hosts that shall take part, read where `--discover` says so and told to the job when they change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from reknit.core.bus import Bus
from reknit.core.discovery import source
from reknit.core.discovery.reading import read
from reknit.core.discovery.source import Source
from reknit.core.discovery.watch import Watch
from reknit.core.events import HostsListed, ListedHost

Say = Callable[[str, bool], None]
Known = Sequence[ListedHost]


def split(discover: str) -> tuple[Source | None, tuple[str, ...]]:
    """Take the setting `discover` apart: the list of hosts, if there is one, and where others gossip."""
    sources = source.parse_all(discover.split(","))
    lists = [s for s in sources if s.kind != "dns"]
    return (lists[0] if lists else None), tuple(str(s).partition(":")[2] for s in sources if s.kind == "dns")


class HostReader:
    """Reads a list again and again; what is new in it goes to the log.

    Each node that has the list reads it. So that nodes which see different lists do not contradict each other for ever,
    one tells it only when its own has changed, or when it begins and the log holds another one.
    """

    def __init__(self, where: Source, *, every: float, say: Say) -> None:
        """Prepare.

        Args:
            where: script or file.
            every: seconds between two readings.
            say: tells the user, True: a warning.
        """
        self._source = where
        self._every = every
        self._say = say

    async def check(self) -> None:
        """See that the list can be read, before anything is started.

        Raises:
            UsageError: it cannot, and why.
        """
        await read(self._source)

    async def tell(self, bus: Bus, *, job: str, run: str, node: str, own: str, known: Callable[[], Known]) -> None:
        """Read and tell until cancelled.

        Args:
            bus: connected.
            job: its name.
            run: of which run.
            node: this node's name.
            own: this node's address as others reach it.
            known: what the log says now.
        """
        watch = Watch(self._source, own=own)
        first = True
        while True:
            try:
                hosts = await watch.look()
            except Exception as error:  # noqa: BLE001 - a list that is not read any more would go unnoticed
                hosts = None
                self._say(f"hosts: {self._source} was not read: {type(error).__name__}: {error}", True)
            for text in watch.news():
                self._say(f"hosts: {text}", True)
            if hosts is not None and not (first and _same(hosts, known())):
                event = HostsListed(run=run, hosts=hosts, source=f"{self._source} on {node}")
                bus.post(job, event)
            first = first and hosts is None
            await asyncio.sleep(self._every)


def _same(hosts: Known, others: Known) -> bool:
    return {h.host: h.slots for h in hosts} == {h.host: h.slots for h in others}
