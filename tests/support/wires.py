"""The wires of a ring inside one process: everything that passes between two workers, and a break at any point of it.

Used like this:

    wires = Wires()
    worker = Wired("b", wires, slots=8, total=6)      # a worker that is dialled through its wire
    wires.rule = lambda m: Break(m, at=7, do=...) if m.what == "FINAL" and m.nth == 3 else None

A wire knows the protocol: it tells the messages of a hello and the frames after it apart, and stops the world at the
n-th of a kind or after so many bytes of it. Other connections (a learner's) are passed on as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import select
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable

import msgspec

from reknit.core import wire
from reknit.core.events import Member
from reknit.worker.ring import frames
from support.rings import PretendWorker

_LENGTH = struct.Struct("<I")
GREETING = ("hello", "nonce", "proof", "ok")
"""Messages of a hello in their order; hello and proof are the dialer's."""


@dataclasses.dataclass(frozen=True)
class Message:
    """One message on its way over a wire.

    Attributes:
        sender, to: whose message it is, and who is to get it.
        generation: of the connection.
        what: `hello`, `nonce`, `proof`, `ok`, or the kind of a frame.
        step, piece: of a frame; a token's lap is its piece.
        nth: how many messages of this kind have passed on all wires of this generation before it.
        size: bytes.
    """

    sender: str
    to: str
    generation: int
    what: str
    step: int
    piece: int
    nth: int
    size: int

    def __str__(self) -> str:
        return f"g{self.generation} {self.sender}>{self.to} {self.what} {self.step}.{self.piece} #{self.nth}"


@dataclasses.dataclass(frozen=True)
class Break:
    """What happens to a message.

    Attributes:
        at: bytes of it that still pass.
        do: called then.
        how: `reset` and `end` break the connection both ways; `silence` lets nothing pass any more and tells nobody;
            `pass` passes the rest on (what was done was meant for somebody else), `late` after `Wires.release`.
        before: bytes put in before it.
        flip: a byte of it in which a bit is turned over, -1 for none.
    """

    at: int
    do: Callable[[], None]
    how: str = "reset"
    before: bytes = b""
    flip: int = -1


Rule = Callable[[Message], Break | None]


class Wires:
    """All wires of some workers.

    Attributes:
        rule: asked for each message before it passes on; called under a lock, so it may count.
        passed: messages that passed or broke, in order.
        release: set to let pass what is held back.
    """

    def __init__(self, rule: Rule = lambda _message: None) -> None:
        self.rule = rule
        self.passed: list[Message] = []
        self.release = threading.Event()
        self._counts: Counter[tuple[int, str]] = Counter()
        self._lock = threading.Lock()
        self._wires: list[Wire] = []

    def lay(self, member: Member) -> Wire:
        """Lay the wire to a worker."""
        made = Wire(self, member)
        self._wires.append(made)
        return made

    def ask(self, sender: str, to: str, generation: int, what: str, step: int, piece: int, size: int) -> Break | None:
        """Note a message, and what is to happen to it."""
        with self._lock:
            key = (generation, what)
            message = Message(sender, to, generation, what, step, piece, self._counts[key], size)
            self._counts[key] += 1
            self.passed.append(message)
            return self.rule(message)

    def close(self) -> None:
        for one in self._wires:
            one.close()


class Wire:
    """What stands before one worker's listener."""

    def __init__(self, wires: Wires, member: Member) -> None:
        self.worker = member.worker
        self._wires = wires
        host, _, port = member.address.rpartition(":")
        self._target = (host, int(port))
        self._server = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._lock = threading.Lock()
        self._socks: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._closed = False
        self.closing = threading.Event()
        self._start(self._accept)

    def close(self) -> None:
        self._closed = True
        self.closing.set()
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        with self._lock:
            for sock in self._socks:
                _shut(sock)  # one that is closed already has no descriptor any more
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive(), "a wire hangs"
        for sock in self._socks:
            sock.close()

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=f"wire-{self.worker}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed:
            try:
                caller, _ = self._server.accept()
            except OSError:
                continue
            self._start(self._connect, caller)

    def _connect(self, caller: socket.socket) -> None:
        try:
            called = socket.create_connection(self._target)
        except OSError:
            reset(caller)  # nobody listens there any more: what a dialer would hear of it, a moment later
            caller.close()
            return
        for sock in (caller, called):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._socks += [caller, called]
            closed = self._closed
        if closed:
            _shut(caller)
            _shut(called)
            return
        _Crossing(self, self._wires, caller, called).run(self._start)


class _Crossing:
    """One connection over a wire; that of a ring is served by one thread, so that it can be closed with a reset."""

    def __init__(self, one: Wire, wires: Wires, caller: socket.socket, called: socket.socket) -> None:
        self._wire, self._wires = one, wires
        self._caller, self._called = caller, called
        self._dialer, self._generation = "", 0

    def run(self, start: Callable[..., None]) -> None:
        how = "end"
        try:
            hello = self._message(self._caller)
            _, purpose, generation, dialer, *_ = wire.unpack(hello[_LENGTH.size :])["hello"]
            if purpose != "ring":
                self._called.sendall(hello)
                start(self._pump, self._called, self._caller)
                self._pump(self._caller, self._called)
                return
            self._dialer, self._generation = str(dialer), int(generation)
            how = self._greet(hello) or self._frames()
        except ConnectionResetError:
            how = "reset"
        except (OSError, EOFError):
            pass
        if how == "silence":
            self._wire.closing.wait()
        for sock in (self._caller, self._called):
            if how == "reset":
                reset(sock)
            sock.close()

    @staticmethod
    def _message(sock: socket.socket) -> bytes:
        head = _exactly(sock, _LENGTH.size)
        return head + _exactly(sock, _LENGTH.unpack(head)[0])

    def _greet(self, data: bytes) -> str:
        """Pass the messages of a hello on; how it ended, or nothing."""
        for what in GREETING:
            dialers = what in ("hello", "proof")
            source, sink = (self._caller, self._called) if dialers else (self._called, self._caller)
            data = data or self._message(source)
            sender, to = (self._dialer, self._wire.worker) if dialers else (self._wire.worker, self._dialer)
            how = self._pass(data, what, sender, to, sink)
            if how:
                return how
            data = b""
        return ""

    def _frames(self) -> str:
        """Pass frames on, until one end closes; how it ended. Nothing but that ever comes from the dialled one."""
        while True:
            if self._called in select.select([self._caller, self._called], [], [])[0] and not self._called.recv(1):
                return "end"
            head = _exactly(self._caller, frames.HEADER.size)
            header = frames.unpack(head)
            # what goes through a lane is in memory that both share, not on the wire
            data = head if header.lane else head + _exactly(self._caller, header.length)
            names = (header.kind.name, self._dialer, self._wire.worker, self._called)
            how = self._pass(data, *names, step=header.step, piece=header.piece)
            if how:
                return how

    def _pass(
        self, data: bytes, what: str, sender: str, to: str, sink: socket.socket, step: int = -1, piece: int = -1
    ) -> str:
        found = self._wires.ask(sender, to, self._generation, what, step, piece, len(data))
        if found is None:
            sink.sendall(data)
            return ""
        if found.flip >= 0:
            data = bytes(b ^ (0x40 if i == found.flip else 0) for i, b in enumerate(data))
        sink.sendall(found.before + data[: found.at])
        found.do()
        if found.how == "late":
            self._wires.release.wait()
        elif found.how != "pass":
            return found.how
        sink.sendall(data[found.at :])
        return ""

    @staticmethod
    def _pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for sock in (source, sink):
            _shut(sock)


class Wired(PretendWorker):
    """A worker whose peers reach it only over its wire."""

    def __init__(self, name: str, wires: Wires, **fields: int) -> None:
        super().__init__(name, **fields)
        self.wire = wires.lay(super().member)

    @property
    def member(self) -> Member:
        return msgspec.structs.replace(super().member, address=self.wire.address)


def reset(sock: socket.socket) -> None:
    """Let the peer of a socket have a reset rather than an end, once it is closed or shut down."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _shut(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(count - len(data))
        if not part:
            raise EOFError
        data += part
    return bytes(data)
