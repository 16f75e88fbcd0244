"""Names of hosts to addresses, as this machine resolves them (`/etc/hosts`, DNS, whatever it has)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterable

from reknit.core.address import Address, split
from reknit.core.errors import UsageError

PATIENCE = 5.0
"""Seconds that one name may take; a resolver of its own time-outs can take half a minute."""


async def addresses_of(host: str, port: int = 0) -> tuple[Address, ...]:
    """Return all addresses of a host, sorted, each once.

    Raises:
        UsageError: it does not resolve, or not in time.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(PATIENCE):
            found = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except TimeoutError:
        why = f"no answer within {PATIENCE:g} s"
    except (OSError, UnicodeError) as error:  # UnicodeError: a label that no DNS name may have
        why = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    else:
        return tuple(sorted({(str(address[0]), port) for _, _, _, _, address in found}))
    raise UsageError(
        f"the name {host!r} does not resolve: {why}", hint=f"`getent hosts {host}` must find it on this machine"
    )


async def resolve(seeds: Iterable[str]) -> tuple[tuple[Address, ...], tuple[str, ...]]:
    """Resolve `HOST:PORT` texts to the addresses that gossip begins at.

    Returns:
        All addresses of all names, each once, and what went wrong, in words.
    """
    texts = list(seeds)
    answers = await asyncio.gather(*(addresses_of(*split(text)) for text in texts), return_exceptions=True)
    found: dict[Address, None] = {}
    trouble = []
    for answer in answers:
        if isinstance(answer, UsageError):
            trouble.append(f"{answer} ({answer.hint})")
        elif isinstance(answer, BaseException):
            raise answer
        else:
            found.update(dict.fromkeys(answer))
    return tuple(found), tuple(trouble)
