"""The bus for code that is not asyncio: a thread with its own loop and its own connection.

Used like this: `bus = BusThread(endpoint, "w1"); bus.start()`, then `post`, `publish`, `follow`, `beat`, `every`, and
`call(lambda bus: bus.last_world(job))` for whatever else the `Bus` can do; at the end `bus.close(flush_seconds=2.0)`.
All methods may be called from any thread; those that wait may not be called from a callback, which runs on the thread.

Make it after a fork, never before: neither threads nor connections survive one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from reknit.core import log, telemetry
from reknit.core.bus import Bus, Received
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, ReknitError
from reknit.core.events import AnyPulse, Event, Pulse
from reknit.core.follow import Follow

_MARGIN = 5.0  # seconds that a call may take beyond what it was given: the loop is ours, it answers or has ended
_log = log.get("bus")
T = TypeVar("T")


class BusThread:
    """A bus with a thread of its own."""

    def __init__(self, endpoint: Endpoint, source: str) -> None:
        """Prepare; nothing is started yet.

        Args:
            endpoint: where the broker is.
            source: who we are, in every event of ours.
        """
        self.source = source
        self._endpoint = endpoint
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._bus: Bus | None = None
        self._repeated: set[asyncio.Task[None]] = set()

    def start(self, timeout: float = 10.0) -> None:
        """Start the thread and connect.

        Raises:
            ControlPlaneUnreachable: no broker answers within `timeout` seconds.
            Unauthorized: it refused the credentials.
        """
        if self._thread is not None:
            raise ReknitError("the bus thread was started already")
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="bus", daemon=True)
        self._thread.start()
        ready.wait()
        try:
            self._bus = self._wait(Bus.connect(self._endpoint, source=self.source, timeout=timeout), timeout)
        except BaseException:
            self._end_thread()
            raise

    @property
    def client_id(self) -> int:
        """The broker's number for our connection; another one after each reconnect."""
        return self._bus.client_id if self._bus is not None else 0

    @property
    def connected(self) -> bool:
        """True while the connection stands."""
        return self._bus is not None and self._bus.connected

    # ---------------------------------------------------------------------------------------------- without waiting

    def post(self, job: str, event: Event, *, id: str | None = None, trace: str | None = None) -> None:  # noqa: A002
        """Put an event into the outbox (see `Bus.post`); posts of one thread keep their order."""
        parent = telemetry.inject() if trace is None else trace  # here: the span is the caller's, not the loop's
        self._soon(lambda bus: bus.post(job, event, id=id, trace=parent))

    def beat(self, job: str, pulse: Pulse) -> None:
        """Send a heartbeat; dropped while the connection is away."""
        self._soon(lambda bus: self._keep(bus.beat(job, pulse)))

    def every(self, seconds: float, call: Callable[[], None]) -> Callable[[], None]:
        """Call something again and again on the bus thread, first at once; returns what stops it.

        It must not block. If it raises, that is logged and it is called again. Calls that were missed are left out.
        """
        stopped = threading.Event()

        async def repeat() -> None:
            loop = asyncio.get_running_loop()
            due = loop.time()
            while not stopped.is_set():
                try:
                    call()
                except Exception as error:  # noqa: BLE001 - one failed heartbeat must not end all heartbeats
                    _log.error("repeated call failed", exc_info=error)
                due = max(due + seconds, loop.time())
                await asyncio.sleep(due - loop.time())

        self._soon(lambda _bus: self._keep(repeat()))
        return stopped.set

    # ------------------------------------------------------------------------------------------------- with waiting

    def publish(
        self,
        job: str,
        event: Event,
        *,
        id: str | None = None,  # noqa: A002 - the name CloudEvents gives it
        expect_last: int | None = None,
        trace: str | None = None,
        deadline: float = 10.0,
    ) -> int:
        """Store an event and return its sequence; see `Bus.publish` for arguments and errors."""
        parent = telemetry.inject() if trace is None else trace
        return self.call(
            lambda bus: bus.publish(job, event, id=id, expect_last=expect_last, trace=parent, deadline=deadline),
            timeout=deadline,
        )

    def follow(
        self,
        callback: Callable[[Received], None],
        *,
        job: str = "*",
        areas: Sequence[str] | None = None,
        from_seq: int = 1,
    ) -> Follow:
        """Hear events; returns when the backlog was given. The callback runs on the bus thread and must not block."""
        return self.call(lambda bus: bus.follow(callback, job=job, areas=areas, from_seq=from_seq))

    def pulses(self, callback: Callable[[str, AnyPulse], None], *, job: str = "*") -> None:
        """Hear heartbeats; the callback runs on the bus thread and must not block."""
        self.call(lambda bus: bus.pulses(callback, job=job))

    def flush(self, timeout: float) -> bool:
        """Wait until everything posted is stored; False if it is not within `timeout` seconds."""
        return self.call(lambda bus: bus.flush(timeout), timeout=timeout)

    def call(self, make: Callable[[Bus], Coroutine[Any, Any, T]], timeout: float | None = None) -> T:
        """Run a coroutine on the bus thread and return what it returns, or raise what it raises.

        Args:
            make: gets the bus, returns the coroutine.
            timeout: seconds it is meant to need; a little more is given. None: no limit.

        Raises:
            ControlPlaneUnreachable: it did not end in time, or the bus is closed.
        """
        if self._bus is None:
            raise ControlPlaneUnreachable("the bus thread is not started, or closed")
        return self._wait(make(self._bus), timeout)

    def close(self, flush_seconds: float = 2.0) -> bool:
        """End the thread; what was posted is stored first, for at most `flush_seconds`.

        Returns:
            True if all of it was stored. A second call does nothing and returns True.
        """
        bus, self._bus = self._bus, None
        if bus is None:
            self._end_thread()
            return True
        stored = False
        try:
            stored = self._wait(bus.flush(flush_seconds), flush_seconds)
            self._wait(bus.close(), 5.0)
        except ControlPlaneUnreachable as error:
            _log.warning("bus thread closed by force", reason=str(error))
        self._end_thread()
        return stored

    # -------------------------------------------------------------------------------------------------------- parts

    def _run(self, ready: threading.Event) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop
        asyncio.set_event_loop(loop)
        loop.call_soon(ready.set)
        try:
            loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(loop)
            for task in tasks:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            loop.close()

    def _wait(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        loop = self._loop
        if loop is None or threading.current_thread() is self._thread:
            coroutine.close()
            raise ReknitError("the bus thread cannot wait for itself: use a call that does not wait")
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise ControlPlaneUnreachable("the bus thread has ended") from None
        try:
            return future.result(None if timeout is None else timeout + _MARGIN)
        except concurrent.futures.CancelledError:
            raise ControlPlaneUnreachable("the bus thread has ended") from None
        except concurrent.futures.TimeoutError:
            future.cancel()
            raise ControlPlaneUnreachable(f"the bus thread did not answer within {timeout} s") from None

    def _soon(self, call: Callable[[Bus], object]) -> None:
        loop, bus = self._loop, self._bus
        if loop is None or bus is None:
            _log.debug("called before the start or after the end of the bus thread")
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process is ending
            loop.call_soon_threadsafe(call, bus)

    def _keep(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._repeated.add(task)
        task.add_done_callback(self._repeated.discard)

    def _end_thread(self) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None and thread.is_alive():
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(loop.stop)
            if threading.current_thread() is not thread:
                thread.join(_MARGIN)
        self._loop = None
