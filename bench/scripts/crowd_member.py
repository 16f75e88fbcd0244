"""Many simulated workers and agents, each with a connection of its own to the broker, in one process.

`python crowd_member.py '<json>'` with `host`, `port`, `user`, `password`, `job`, `names` (agents as `@node`), `nodes`
(node -> its workers) and `beat` (seconds between two heartbeats of one). They listen to what real ones listen to. The
process speaks with its starter by lines of JSON:

    out  {"connected": {name: client id}}
    in   {"generation": 3}                         what heartbeats say from now on
    in   {"end": "n7-3"}                           this worker's process has ended: its connection does too
    out  {"seq": 812, "at": [...]} a world.changed has come to all: monotonic time of each arrival

The protocol is spoken here in a few lines: the client library would take ten times the processor time, on a machine
that the broker and the services under measurement need.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import Callable
from typing import Any

from reknit.core import wire
from reknit.core.events import NodePulse, Pulse, WorkerPulse, WorldChanged, kind_of
from reknit.core.subjects import LIVE, ROOT, heartbeat_subject

TURNS = 50
"""The heartbeats of one interval are spread over so many turns of the loop."""
STEP_SECONDS = 0.1
WORKER_AREAS = ("world", "shards", "checkpoint", "job")
AGENT_AREAS = ("job", "node", "worker", "world")
_RTT_SUBJECTS = 5
_WORLD = kind_of(WorldChanged(generation=0, run="", status="running"))


class Client(asyncio.Protocol):
    """One connection: says who it is, subscribes, and looks at no more of what comes than it must."""

    def __init__(self, crowd: Crowd, name: str, areas: tuple[str, ...]) -> None:
        self.name = name
        self.client_id = 0
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._crowd = crowd
        self._areas = areas
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._left = 0  # bytes of a message's body that have not come yet
        self._head = b""  # of the world that is coming: its headers, as far as they are there
        self._is_world = False
        self._head_size = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport; the broker speaks first."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        """It was thrown out, which spoils what is measured; or it was told to end."""
        if self._crowd.clients.pop(self.name, None) is not None:
            self._crowd.say(lost=self.name, why=str(exc))

    def send(self, data: bytes) -> None:
        """Send bytes of the protocol."""
        assert self._transport is not None
        self._transport.write(data)

    def abort(self) -> None:
        """End as a process that was killed."""
        assert self._transport is not None
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take lines and skip bodies; note the time when the last byte of a world has come."""
        while data:
            if self._left:
                took = min(self._left, len(data))
                if self._is_world and len(self._head) < self._head_size:
                    self._head += data[: self._head_size - len(self._head)]
                self._left -= took
                data = data[took:]
                if not self._left and self._is_world:
                    self._is_world = False
                    self._crowd.arrived(self, self._head)
                continue
            line, end, data = (self._rest + data).partition(b"\r\n")
            self._rest = b""
            if not end:
                self._rest = line
                return
            self._line(line)

    def _line(self, line: bytes) -> None:
        word = line[:5]
        if word in (b"HMSG ", b"MSG l", b"MSG r"):
            words = line.split()
            self._left = int(words[-1]) + 2
            self._is_world = words[1].endswith(self._crowd.world)
            if self._is_world:
                self._head, self._head_size = b"", int(words[-2])
        elif line == b"PING":
            self.send(b"PONG\r\n")
        elif word == b"INFO " and not self.client_id:
            self.client_id = json.loads(line[5:])["client_id"]
            login = {"user": self._crowd.user, "pass": self._crowd.password, "name": self._named()}
            options = {
                "verbose": False,
                "pedantic": False,
                "headers": True,
                "lang": "bench",
                "version": "0",
                "protocol": 1,
            }
            subscriptions = "".join(
                f"SUB {LIVE}.{ROOT}.{self._crowd.job}.{area}.> {number}\r\n"
                for number, area in enumerate(self._areas, 1)
            )
            self.send(f"CONNECT {json.dumps(login | options)}\r\n{subscriptions}PING\r\n".encode())
        elif line == b"PONG" and not self.ready.done():
            self.ready.set_result(None)
        elif word == b"-ERR ":
            self._crowd.say(error=line.decode(errors="replace"), name=self.name)

    def _named(self) -> str:
        return f"agent/{self.name[1:]}" if self.name.startswith("@") else self.name


class Crowd:
    """All of them."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.job, self.user, self.password = told["job"], told["user"], told["password"]
        self.world = f".{_WORLD}".encode()
        self.clients: dict[str, Client] = {}
        self._where = told["host"], told["port"]
        self._names: list[str] = told["names"]
        self._nodes: dict[str, list[str]] = told["nodes"]
        self._every: float = told["beat"]
        self._generation = 0
        self._began = time.monotonic()
        self._draw = random.Random(self._names[0])
        self._arrivals: dict[int, list[float]] = {}

    @staticmethod
    def say(**what: Any) -> None:
        """Tell the starter."""
        print(json.dumps(what), flush=True)

    async def run(self) -> None:
        """Connect, beat, and do as the lines on stdin say, until they end."""
        loop = asyncio.get_running_loop()
        for name in self._names:
            areas = AGENT_AREAS if name.startswith("@") else WORKER_AREAS
            _, client = await loop.create_connection(self._maker(name, areas), *self._where)
            await client.ready
            self.clients[name] = client
        self.say(connected={name: client.client_id for name, client in self.clients.items()})
        lines = asyncio.StreamReader()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
        beating = asyncio.create_task(self._beat())
        while line := await lines.readline():
            self._do(json.loads(line))
        beating.cancel()

    def _maker(self, name: str, areas: tuple[str, ...]) -> Callable[[], Client]:
        return lambda: Client(self, name, areas)

    def _do(self, order: dict[str, Any]) -> None:
        self._generation = order.get("generation", self._generation)
        ended = self.clients.pop(order.get("end", ""), None)
        if ended is not None:
            ended.abort()

    async def _beat(self) -> None:
        loop = asyncio.get_running_loop()
        due, turn = loop.time(), 0
        while True:
            for number, name in enumerate(self._names):
                if number % TURNS == turn and name in self.clients:
                    data = wire.encode(self._pulse(name))
                    subject = heartbeat_subject(self.job, name.removeprefix("@"))
                    self.clients[name].send(f"PUB {subject} {len(data)}\r\n".encode() + data + b"\r\n")
            turn = (turn + 1) % TURNS
            due += self._every / TURNS
            await asyncio.sleep(due - loop.time())

    def _pulse(self, name: str) -> Pulse:
        ran = time.monotonic() - self._began
        if name.startswith("@"):
            node = name[1:]
            others = list(self._nodes)
            mine = others.index(node)
            watched = [others[(mine + i) % len(others)] for i in range(1, 1 + _RTT_SUBJECTS)]
            return NodePulse(
                node=node,
                workers=dict.fromkeys((w for w in self._nodes[node] if w in self.clients), "S"),
                load=1.0,
                memory_free=1 << 34,
                rtt={other: round(self._draw.uniform(0.2, 2.0), 3) for other in watched},
            )
        step = int(ran / STEP_SECONDS)
        return WorkerPulse(
            worker=name,
            incarnation=1,
            generation=self._generation,
            step=step,
            committed=step,
            phase="compute" if self._draw.random() < 0.7 else "reduce",
            in_phase=self._draw.uniform(0.0, STEP_SECONDS),
            samples=step * 8000,
            rate=80_000.0,
            step_seconds=STEP_SECONDS,
            compute_seconds=0.8 * STEP_SECONDS,
            slots=1,
            loss=1.0,
            rss=1 << 29,
            current=True,
        )

    def arrived(self, client: Client, head: bytes) -> None:
        """A world has come to one of them; tell it once it has come to all."""
        now = time.monotonic()
        seq = int(head.partition(b"Nats-Sequence: ")[2].partition(b"\r\n")[0])
        at = self._arrivals.setdefault(seq, [])
        if client.name in self.clients:
            at.append(now)
        if len(at) >= len(self.clients):
            self.say(seq=seq, at=self._arrivals.pop(seq))


if __name__ == "__main__":
    asyncio.run(Crowd(json.loads(sys.argv[1])).run())
