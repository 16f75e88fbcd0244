"""Who does not speak the protocol, speaks it too late, or says nothing: on a listener's port, in a member's place, on a
link that is in use.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections.abc import Iterator

import msgspec
import pytest

from reknit.core.events import RingBroken, WorldChanged
from reknit.worker.ring import frames, hello, linking
from reknit.worker.ring.frames import Header, Kind
from reknit.worker.ring.hello import Hello
from support.breaks import Scene, record
from support.rings import PretendWorker, Rings, wait_until

# ---------------------------------------------------------------------------------------------- on the listener's port


def garbage(draw: random.Random) -> bytes:
    return draw.choice(
        [
            b"",
            b"GET / HTTP/1.1\r\n\r\n",
            draw.randbytes(draw.randrange(1, 200)),
            b"\xff\xff\xff\xff",
            b"\x10\x00\x00\x00" + draw.randbytes(16),
            Header(Kind.FINAL, 0, 1, 0, 8, 12000).pack() + draw.randbytes(500),
        ]
    )


@contextlib.contextmanager
def hecklers(scene: Scene) -> Iterator[list[int]]:
    """Somebody at every worker's port all the time: garbage, half a hello, a hello of a world that is over."""
    over, done = threading.Event(), [0, 0]

    def heckle(seed: int) -> None:
        draw = random.Random(seed)
        open_ones: list[socket.socket] = []
        while not over.wait(0.002):
            workers = list(scene.rings.workers.values())
            if not workers:
                continue
            worker = draw.choice(workers)
            host, _, port = worker.listener.address.rpartition(":")
            with contextlib.suppress(OSError, hello.Refused):
                sock = socket.create_connection((host, int(port)), timeout=1)
                open_ones.append(sock)
                if draw.random() < 0.5:
                    sock.sendall(garbage(draw))
                    done[0] += 1
                else:
                    # who was in world 0 knows the secret
                    done[1] += 1
                    hello.dial(sock, Hello("job", "ring", 0, "b", 1, worker.name), "secret")
            while len(open_ones) > 20:
                open_ones.pop(0).close()
        for sock in open_ones:
            sock.close()

    threads = [threading.Thread(target=heckle, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield done
    finally:
        over.set()
        for thread in threads:
            thread.join()


@pytest.mark.parametrize("step", range(1, 5))
def test_garbage_and_old_hellos_at_every_port_while_the_ring_breaks(step: int) -> None:
    with Scene("abcd", total=8) as scene, hecklers(scene) as done:
        scene.at(lambda m: m.what == "REDUCE" and m.step == step, scene.kills("to"))
        scene.at(lambda m: m.generation == 2 and m.what == "TOKEN", scene.resets())
        scene.at(lambda m: m.generation == 3 and m.what == "FINAL", scene.silences("sender"))
        scene.play()
    assert all(done)


# ------------------------------------------------------------------------------------------------- on a link in use


def frame(kind: Kind, generation: int, step: int, piece: int, coverage: int, payload: bytes = b"") -> bytes:
    check = frames.check_of(memoryview(payload))
    return Header(kind, generation, step, piece, coverage, len(payload), check=check).pack() + payload


@pytest.mark.parametrize(
    "stranger",
    [
        frame(Kind.FINAL, 0, 2, 0, 8),
        frame(Kind.FINAL, 1, 2, 0, 8, bytes(12000)),
        frame(Kind.REDUCE, 1, 2, 3, 2, bytes(16)),
        frame(Kind.REDUCE, 1, 1, 0, 2, bytes(12000)),
        frame(Kind.REDUCE, 2, 2, 0, 2, bytes(12000)),
        frame(Kind.TOKEN, 1, 0, 1, 1, b"\x90"),
        frame(Kind.RESEND, 1, 1, 0, 0, b"abc"),
        bytes(frames.HEADER.size),
        b"\xff" * 7,
    ],
    ids=[
        "a result of world 0",
        "a result of this step",
        "a control piece before its turn",
        "gradients of the step before",
        "gradients of a world to come",
        "a token",
        "a result that nobody asked for",
        "zeros",
        "a few bytes",
    ],
)
@pytest.mark.parametrize("to", "abd")
def test_what_does_not_belong_on_a_link_breaks_it_and_counts_for_nothing(stranger: bytes, to: str) -> None:
    with Scene("abcd") as scene:
        scene.at(lambda m: m.step == 2 and m.to == to and m.what in ("REDUCE", "FINAL"), scene.puts_in(stranger))
        scene.play()
        assert scene.rings.generation > 1


# ---------------------------------------------------------------------------------------------- in a member's place


class Mute:
    """A plain socket that accepts and never answers, or hangs up at once."""

    def __init__(self, *, hangs_up: bool) -> None:
        self._server = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._hangs_up = hangs_up
        self.callers: list[socket.socket] = []
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                caller, _ = self._server.accept()
            except OSError:
                return
            if self._hangs_up:
                caller.close()
            self.callers.append(caller)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        self._thread.join(10)
        for caller in self.callers:
            caller.close()


def in_place_of(rings: Rings, name: str, address: str, names: str) -> None:
    """The next world, in which somebody else sits at a member's address."""
    rings.generation += 1
    members = tuple(
        msgspec.structs.replace(rings.workers[n].member, address=address) if n == name else rings.workers[n].member
        for n in names
    )
    rings.newest = WorldChanged(generation=rings.generation, run="run", status="running", members=members)
    for n in names:
        if n != name:
            rings.workers[n].engine.on_world(rings.newest)


@pytest.mark.parametrize("hangs_up", [False, True])
@pytest.mark.parametrize("name", "abd")
def test_a_stranger_in_a_members_place_is_reported_and_holds_nobody_up(
    name: str, hangs_up: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(linking, "HELLO_PATIENCE", 0.3)
    rings, mute = Rings(), Mute(hangs_up=hangs_up)
    names = "abcd"
    rest = [n for n in names if n != name]
    before = names[names.index(name) - 1]
    try:
        for n in names:
            rings.add(PretendWorker(n, slots=8, total=40))
        gate = rings.workers[rest[1]].pause_at(3)
        rings.world(names)
        wait_until(lambda: rings.workers[rest[1]].paused)
        rings.workers[name].kill()
        in_place_of(rings, name, mute.address, names)

        def reports() -> list[RingBroken]:
            events = rings.workers[before].outlet.events
            return [e for e in events if isinstance(e, RingBroken) and e.generation == rings.generation]

        wait_until(lambda: bool(reports()), what="the one before it says so")
        assert (reports()[0].peer, reports()[0].side) == (name, "next")
        assert "no answer to the hello" in reports()[0].error
        # the same world again, and this time the next one comes while they still wait for an answer
        calls = len(mute.callers)
        in_place_of(rings, name, mute.address, names)
        wait_until(lambda: len(mute.callers) > calls, what="the one before it dials again")
        began = time.monotonic()
        rings.world(rest)
        gate.set()
        wait_until(lambda: all(rings.workers[n].shared.generation == rings.generation for n in rest))
        record("a stranger in a member's place, next world linked", time.monotonic() - began, level="in one process")
        assert len(set(rings.finish(rest))) == 1
    finally:
        rings.close()
        mute.close()
