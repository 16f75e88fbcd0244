"""A list of hosts that is read again and again: what is new in it is told once, and the last good one stays.

watch = Watch(source, own="10.0.0.7")
while True:
    listed = await watch.look()        # None: nothing new
    for line in watch.news():          # what is wrong, or right again, once each
        …
    await asyncio.sleep(every)
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
from collections.abc import Iterable

from reknit.core.errors import UsageError
from reknit.core.events import ListedHost

from . import reading
from .names import addresses_of
from .source import Source

_AT_ONCE = 32
"""Names that are looked up at the same time."""
_AGAIN = 4
"""Names with known addresses that are looked up again with each reading."""
_DIGITS = re.compile(r"\d+")


class Watch:
    """Reads one source; keeps what it read last.

    Attributes:
        hosts: the last good list, () before the first.
    """

    def __init__(self, source: Source, *, own: str = "", patience: float = reading.PATIENCE) -> None:
        """Prepare.

        Args:
            source: a script or a file.
            own: this machine's address as others reach it: a host of the list that is the loopback here means that.
            patience: seconds that a script may take.
        """
        self.source = source
        self.hosts: tuple[ListedHost, ...] = ()
        self._own = own
        self._patience = patience
        self._known: dict[str, tuple[str, ...]] = {}
        self._trouble: dict[str, str] = {}
        self._news: list[str] = []
        self._turn = 0

    async def look(self) -> tuple[ListedHost, ...] | None:
        """Read the list once; return it if it differs from the one before."""
        try:
            said = await reading.read(self.source, self._patience)
        except UsageError as error:
            keeps = "the last list stays" if self.hosts else "nobody is drained for it"
            self._wrong("", f"{error}; {keeps} ({error.hint})")
            return None
        self._right("", f"{self.source} can be read again")
        for gone in (self._trouble.keys() | self._known.keys()) - said.keys() - {""}:
            self._trouble.pop(gone, None)
            self._known.pop(gone, None)
        gate = asyncio.Semaphore(_AT_ONCE)
        await asyncio.gather(*(self._look_up(host, gate) for host in self._due(said)))
        hosts = tuple(
            ListedHost(host=host, slots=slots, addresses=self._known.get(host, ())) for host, slots in said.items()
        )
        if hosts == self.hosts:
            return None
        self.hosts = hosts
        return hosts

    def news(self) -> list[str]:
        """Return what has gone wrong, or is right again, since the last call."""
        news, self._news = self._news, []
        return news

    def _due(self, said: Iterable[str]) -> list[str]:
        """Names to look up: those without an address, and a few of the others in turn."""
        hosts = list(said)
        unknown = [host for host in hosts if host not in self._known]
        known = [host for host in hosts if host in self._known]
        self._turn += _AGAIN
        first = self._turn % max(1, len(known))
        return unknown + (known * 2)[first : first + min(_AGAIN, len(known))]

    async def _look_up(self, host: str, gate: asyncio.Semaphore) -> None:
        known = self._known.get(host, ())
        try:
            async with gate:
                found = {address for address, _ in await addresses_of(host)}
        except UsageError as error:
            keeps = f"its last address {known[0]} stays" if known else "it can only be a node of that name"
            self._wrong(host, f"{self.source}: {error}; {keeps} ({error.hint})")
            return
        self._right(host, f"{self.source}: {host} resolves again")
        if self._own and any(_is_loopback(address) for address in found):
            found.add(self._own)
        # A name may have more addresses than one answer holds: a list that changed with each would be told each time.
        self._known[host] = tuple(sorted(found.union(known)))

    def _wrong(self, about: str, text: str) -> None:
        # only another time or process id in what a script says is nothing new
        if _DIGITS.sub("#", self._trouble.get(about, "")) != _DIGITS.sub("#", text):
            self._trouble[about] = text
            self._news.append(text)

    def _right(self, about: str, text: str) -> None:
        if self._trouble.pop(about, ""):
            self._news.append(text)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
