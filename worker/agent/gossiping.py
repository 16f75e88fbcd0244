"""The gossip core behind a UDP socket: datagrams and timers in, datagrams and reports out.

What goes wrong here never ends or holds up the agent: gossip is one kind of evidence among others.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from reknit.core import log
from reknit.core.address import Address, join
from reknit.core.context import AgentContext
from reknit.core.errors import ReknitError, WireError
from reknit.gossip.codec import Opener, Sealer, UnknownKey
from reknit.gossip.gossip import Gossip
from reknit.gossip.happening import Happening
from reknit.gossip.identity import Self
from reknit.gossip.keyring import Keyring, derived, load
from reknit.gossip.preset import PRESETS, Preset
from reknit.gossip.reception import Reception

KEYS_EVERY = 5.0
"""Seconds between two looks at the file of keys."""
_BUFFER = 1 << 20

_log = log.get("gossip")


class Gossiping(asyncio.DatagramProtocol):
    """One node's gossip, on the running loop.

    Attributes:
        address: where it listens, as `host:port`; empty before `open` and where that failed.
        core: the protocol; None before `begin` and where `open` failed.
        dropped: datagrams that did not open.
    """

    def __init__(
        self,
        node: str,
        preset: Preset,
        *,
        keyring: Keyring,
        keys: Path | None,
        changed: Callable[[Happening], None],
    ) -> None:
        """Prepare.

        Args:
            node: its name.
            preset: figures of the protocol, the same on all nodes.
            keyring: what datagrams are sealed with.
            keys: the file that the keyring came from and is read from again, None if it came from elsewhere.
            changed: called for each happening.
        """
        self.address = ""
        self.core: Gossip | None = None
        self.dropped = 0
        self._reception = Reception()
        self._met: set[Address] = set()
        self._node, self._preset = node, preset
        self._sealer, self._opener = Sealer(keyring, os.urandom(16)), Opener(keyring)
        self._keys, self._keys_read = keys, self._stamp(keys)
        self._changed = changed
        self._transport: asyncio.DatagramTransport | None = None
        self._at: Address = ("", 0)
        self._alarm: asyncio.TimerHandle | None = None
        self._keys_alarm: asyncio.TimerHandle | None = None
        self._complained = ""

    @classmethod
    def of(cls, context: AgentContext, changed: Callable[[Happening], None]) -> Gossiping | None:
        """Return the gossip of an agent; None if its job has none.

        Raises:
            UsageError: the file of keys cannot be read.
        """
        preset = PRESETS.get(context.gossip)
        if preset is None:
            return None
        keys = Path(context.gossip_keys) if context.gossip_keys else None
        keyring = load(keys) if keys is not None else Keyring((derived(context.secret.encode()),))
        return cls(context.node, preset, keyring=keyring, keys=keys, changed=changed)

    def report(self) -> dict[str, Any]:
        """Return what a heartbeat tells of it: the fields of `NodePulse`."""
        core = self.core
        if core is None:
            return {}
        rtt = {name: round(1e3 * took, 3) for name in core.subjects if (took := core.rtt(name)) is not None}
        received = self._reception.tally(time.monotonic())
        return {
            "silent": tuple(sorted(core.silent)),
            "sick": core.sick,
            "view": core.digest,
            "rtt": rtt,
            "refused": received.refused,
            "refused_of": received.refused_of,
            "opened_of": received.opened_of,
        }

    async def open(self, host: str, port: int = 0) -> str:
        """Listen; return what went wrong in words, empty if nothing did.

        Args:
            host: an address of this machine.
            port: 0: a free one; one that is taken is replaced by a free one, and said.
        """
        loop = asyncio.get_running_loop()
        try:
            transport, _ = await loop.create_datagram_endpoint(lambda: self, local_addr=(host, port))
        except OSError as error:
            if not port:
                return f"no gossip: UDP on {host}: {error.strerror or error}"
            if said := await self.open(host):
                return said
            return f"gossip on {self.address}, not on port {port} as asked: {error.strerror or error}"
        self._transport = transport
        bound: socket.socket = transport.get_extra_info("socket")
        with suppress(OSError):
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _BUFFER)
        self._at = bound.getsockname()[:2]
        self.address = join(*self._at)
        return ""

    def begin(self, epoch: int) -> None:
        """Take part, if it listens.

        Args:
            epoch: sequence of the node's `node.joined`: of two agents of one name the later one has the greater one,
                whatever any clock shows.
        """
        if self._transport is None:
            return
        self.core = Gossip(
            Self(self._node, epoch, self._at),
            preset=self._preset,
            seed=int.from_bytes(os.urandom(8)),
            now=time.monotonic(),
        )
        if self._keys is not None:
            self._keys_alarm = asyncio.get_running_loop().call_later(KEYS_EVERY, self._look_at_keys)
        self._flush()

    def meet(self, addresses: Iterable[Address]) -> None:
        """Get to know nodes at these numeric addresses."""
        if self.core is not None and self._transport is not None:
            new = [address for address in addresses if address != self._at]
            self._met.update(new)
            self.core.meet(new)
            self._flush()

    def close(self) -> None:
        """Say goodbye and stop listening."""
        for alarm in (self._alarm, self._keys_alarm):
            if alarm is not None:
                alarm.cancel()
        if self._transport is not None:
            if self.core is not None:
                self.core.leave(time.monotonic())
                self._send()
            self._transport.close()
            self._transport = None

    # ---------------------------------------------------------------------------------------------------- the loop

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """Take one datagram in."""
        if self.core is None or self._transport is None:
            return
        now, source = time.monotonic(), (addr[0], addr[1])
        try:
            packet = self._opener.open(data)
        except WireError as error:
            self.dropped += 1
            if isinstance(error, UnknownKey) and source in self._met:
                self._reception.refused(now, source)
            self._complain(f"a datagram from {join(*source)} was dropped: {error}")
            return
        self._reception.opened(now, source)
        self.core.on_packet(now, packet, source)
        self._flush()

    def error_received(self, exc: Exception) -> None:
        """A datagram could not be delivered: who does not listen will be found silent, that is all."""

    def _on_alarm(self) -> None:
        if self.core is not None and self._transport is not None:
            self.core.on_timer(time.monotonic())
            self._flush()

    def _flush(self) -> None:
        assert self.core is not None
        self._send()
        for happening in self.core.happened():
            self._changed(happening)
        if self._alarm is not None:
            self._alarm.cancel()
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_later(max(0.0, self.core.due() - time.monotonic()), self._on_alarm)

    def _send(self) -> None:
        assert self.core is not None
        assert self._transport is not None
        for address, packet in self.core.transmit():
            try:
                self._transport.sendto(self._sealer.seal(packet), address)
            except (OSError, ValueError, WireError) as error:  # ValueError: an address of the other family
                self._complain(f"a datagram to {join(*address)} was not sent: {error}")

    def _complain(self, text: str) -> None:
        """Log the first of a kind: a stranger that sends garbage shall not fill the log."""
        if text != self._complained:
            self._complained = text
            _log.warning(text, node=self._node)

    # ---------------------------------------------------------------------------------------------------- keys

    @staticmethod
    def _stamp(path: Path | None) -> tuple[int, int]:
        try:
            found = path.stat() if path is not None else None
        except OSError:
            return 0, 0
        return (found.st_mtime_ns, found.st_size) if found is not None else (0, 0)

    def _look_at_keys(self) -> None:
        self._keys_alarm = asyncio.get_running_loop().call_later(KEYS_EVERY, self._look_at_keys)
        stamp = self._stamp(self._keys)
        if self._keys is None or stamp in (self._keys_read, (0, 0)):
            return
        self._keys_read = stamp
        try:
            keyring = load(self._keys)
        except ReknitError as error:
            _log.warning(f"the keys stay as they were: {error}", node=self._node)
            return
        self._sealer.keyring = self._opener.keyring = keyring
        _log.info("gossip keys read anew", node=self._node, keys=len(keyring.keys))
