"""A TCP proxy that loses what a test wants lost: the network between a client and the broker."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType


class Proxy:
    """Passes bytes on both ways.

    Attributes:
        port: where it listens on the loopback.
        deaf: while True, what the server says is thrown away; the client still gets through.
        cut_at: once, all is cut when a client says this.
    """

    def __init__(self, target_port: int) -> None:
        self.port = 0
        self.deaf = False
        self.cut_at = b""
        self._target = target_port
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Proxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Break all connections, with a reset."""
        for writer in list(self._writers):
            writer.transport.abort()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, up_writer}
        for source, sink, down in ((reader, up_writer, False), (up_reader, writer, True)):
            task = asyncio.create_task(self._pass(source, sink, down))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, down: bool) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                if self.cut_at and not down and self.cut_at in data:
                    self.cut_at = b""
                    self.cut()
                    return
                if not (down and self.deaf):
                    sink.write(data)
                    await sink.drain()
        sink.transport.abort()
