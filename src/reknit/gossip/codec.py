"""Packets as datagrams: msgpack, sealed with ChaCha20-Poly1305, at most 1,400 bytes.

    4  magic and version     part of what is sealed
    4  name of the key       part of what is sealed
   16  sender                drawn by each process; part of what is sealed
    8  counter               of the sender's datagrams; the nonce
    …  msgpack, encrypted
   16  tag

Each process seals with a key of its own, derived from the keyring's and the 16 bytes that it has drawn, so a counter is
a nonce that nobody else uses. Whatever does not open is dropped: a stranger's packet, another job's, one that was
changed, one that was opened before.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import struct
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from reknit.core import wire
from reknit.core.errors import WireError

from .keyring import Keyring, tag_of
from .message import Packet
from .replay import Replay

MOST: Final = 1400
"""Bytes of a datagram."""
_MAGIC: Final = b"RKG1"
_HEAD: Final = struct.Struct(">4s4s16sQ")
_TAG: Final = 16
SEAL: Final = _HEAD.size + _TAG
"""Bytes that sealing adds."""


class Rejected(WireError):
    """A datagram that is not for us, or not what it was."""


class UnknownKey(Rejected):
    """A datagram of this version that was sealed with a key that is not known here."""


@functools.lru_cache(maxsize=4096)
def _cipher(key: bytes, sender: bytes) -> ChaCha20Poly1305:
    return ChaCha20Poly1305(hmac.new(key, b"reknit gossip sender" + sender, hashlib.sha256).digest())


class Sealer:
    """Seals the packets of one process."""

    def __init__(self, keyring: Keyring, sender: bytes) -> None:
        """Begin.

        Args:
            keyring: its first key seals; may be set anew at any time.
            sender: 16 random bytes, never used by another process.
        """
        if len(sender) != 16:
            raise ValueError("a sender is named by 16 random bytes")
        self.keyring = keyring
        self._sender = sender
        self._counter = 0

    def seal(self, packet: Packet) -> bytes:
        """Return the datagram.

        Raises:
            WireError: it would be longer than 1,400 bytes.
        """
        key = self.keyring.sealing
        head = _HEAD.pack(_MAGIC, tag_of(key), self._sender, self._counter)
        nonce = struct.pack(">IQ", 0, self._counter)
        self._counter += 1
        sealed = head + _cipher(key, self._sender).encrypt(nonce, wire.encode(packet), head)
        if len(sealed) > MOST:
            raise WireError(f"a gossip packet of {len(sealed)} bytes, at most {MOST} are sent")
        return sealed


class Opener:
    """Opens what others sealed."""

    def __init__(self, keyring: Keyring) -> None:
        """Begin; the keyring may be set anew at any time."""
        self.keyring = keyring
        self._replay = Replay()

    def open(self, data: bytes) -> Packet:
        """Return the packet.

        Raises:
            UnknownKey: the key is not known.
            Rejected: it is no datagram of ours, it was changed, or it was opened before; the text says which.
        """
        if len(data) < SEAL or len(data) > MOST or data[:4] != _MAGIC:
            raise Rejected("no gossip of this version")
        _, tag, sender, counter = _HEAD.unpack_from(data)
        key = self.keyring.find(tag)
        if key is None:
            raise UnknownKey("sealed with a key that is not known here")
        try:
            plain = _cipher(key, sender).decrypt(struct.pack(">IQ", 0, counter), data[_HEAD.size :], data[: _HEAD.size])
        except InvalidTag as error:
            raise Rejected("its seal is broken") from error
        if not self._replay.fresh(sender, counter):
            raise Rejected("opened before")
        packet: Packet = wire.decode(plain, Packet)
        return packet
