"""The control plane of one launcher: the broker and the services, those that are there and those it keeps itself.

A job's log lies where its first run put it: in the store of `reknit up`, or in one of the job's own. The broker over a
job's own store is kept by one launcher; the launchers of other nodes on this machine wait at its lock and take over the
moment it dies. A service that somebody else keeps and that falls silent is started here as well; two of a kind do no
harm.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from reknit.core import context
from reknit.core.broker import Broker
from reknit.core.bus import Bus
from reknit.core.context import Endpoint
from reknit.core.errors import ControlPlaneUnreachable, ReknitError
from reknit.core.home import ControlFolder, Mark
from reknit.core.launch import Keeper, module
from reknit.core.service import INSTANCE

from . import control

SERVICES = ("membership", "shards", "checkpoint", "monitor")
STANDBY = "membership-standby"
"""A second process of the first service: it decides along, and acts when the other one is gone."""
PAGE_FILE = "monitor.port"
SILENCE = 3.0
"""Seconds that a service kept by somebody else may be silent until one is started here."""
HUNG = 10.0
"""Seconds that a service of ours may be silent, after it has once answered, until it is killed and started again."""
ASK_EVERY = 1.0
_ANSWER = 0.8
_TRACES = "REKNIT_TRACE_DIR"
_PORT_FILE = "REKNIT_MONITOR_PORT_FILE"

Say = Callable[[str, bool], None]
"""Called with a remark and whether it is a warning."""


@dataclasses.dataclass(slots=True)
class _Service:
    heard: float
    ours: bool = False
    answered: bool = False


class Plane:
    """Broker and services, kept for as long as the launcher lives.

    Attributes:
        folder: whose store the broker uses, None: a broker elsewhere, given by address.
        ours: True while this process keeps the broker.
    """

    def __init__(
        self, folder: ControlFolder | None, logs: ControlFolder, keeper: Keeper, say: Say, *, standby: bool = False
    ) -> None:
        self.folder = folder
        self.ours = False
        self._logs = logs
        self._keeper = keeper
        self._say = say
        self._broker: Broker | None = None
        self._endpoint: Endpoint | None = None
        self._held = contextlib.ExitStack()
        self._names = (*SERVICES, STANDBY) if standby else SERVICES
        self._services = {name: _Service(time.monotonic()) for name in self._names}
        self._host, self._port = "127.0.0.1", 0
        self._wrong = ""

    @property
    def endpoint(self) -> Endpoint:
        """Where the broker is; known after `open` or `own`."""
        assert self._endpoint is not None
        return self._endpoint

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The broker's process, if it is ours."""
        pid = self._broker_pid
        return (Mark.of(pid, "broker"),) if pid else ()

    @property
    def _broker_pid(self) -> int | None:
        return self._broker.pid if self._broker else None

    @property
    def _page_file(self) -> Path:
        return self._logs.path / PAGE_FILE

    def page(self) -> str:
        """Address of the page of a monitor that is kept here, empty while there is none."""
        if not self._services["monitor"].ours:
            return ""
        try:
            return f"http://127.0.0.1:{int(self._page_file.read_text())}/"
        except (OSError, ValueError):
            return ""

    def use(self, endpoint: Endpoint) -> None:
        """Use a broker that somebody else keeps."""
        self._endpoint = endpoint

    def own(self, who: str, *, host: str = "", port: int = 0, patient: bool = True) -> bool:
        """Become the keeper of the folder's broker and start it; False if another process is that.

        Must be called on the main thread: the kernel ends the broker with the thread that started it.

        Raises:
            UsageError: the port is taken.
            ControlPlaneUnreachable: the broker does not come up.
        """
        assert self.folder is not None
        self._host, self._port = host or self._host, port
        # somebody who only reads is soon done
        patience = control.PATIENCE if patient and self.folder.holder().startswith(control.READ) else 0.3
        if not self._held.enter_context(self.folder.control(who, wait=patience)):
            self._held.close()
            return False
        try:
            self._broker = control.start_broker(
                self.folder, host=self._host, port=port, any_port=self._endpoint is None
            )
        except BaseException:
            self._held.close()
            raise
        self.ours = True
        self._endpoint = self._broker.endpoint
        self.folder.keep_endpoint(self._endpoint)
        return True

    async def own_or_join(self, who: str, *, host: str = "", port: int = 0, within: float = 10.0) -> None:
        """Become the keeper of the folder's broker, or use that of the process that is.

        Raises:
            UsageError: the port is taken.
            ControlPlaneUnreachable: another process keeps the broker, and that does not answer.
        """
        assert self.folder is not None
        deadline = time.monotonic() + within
        while not self.own(who, host=host, port=port):
            endpoint = self.folder.endpoint()
            if endpoint is not None:
                with contextlib.suppress(ControlPlaneUnreachable):
                    bus = await Bus.connect(endpoint, source="launcher-look", timeout=1.0)
                    await bus.close()
                    self._endpoint = endpoint
                    return
            if time.monotonic() > deadline:
                raise ControlPlaneUnreachable(
                    f"the broker of {self.folder.path} does not answer although {self.folder.holder()} keeps it",
                    hint="try again, or end that process",
                )
            await asyncio.sleep(0.05)

    # ---------------------------------------------------------------------------------------------------- services

    async def serve(self, bus: Bus) -> None:
        """Start the services that are missing: all of them beside a broker of ours, else those that do not answer."""
        there = set() if self.ours else await _answering(bus, self._names)
        for name in self._names:
            if name not in there:
                await self._start(name)

    async def _start(self, name: str) -> None:
        if self._keeper.keeps(name):
            return
        state = self._services[name]
        state.ours, state.answered, state.heard = True, False, time.monotonic()
        env = {context.ENDPOINT: context.to_env(self.endpoint), _TRACES: str(self._logs.traces)}
        if name == "monitor":
            self._page_file.unlink(missing_ok=True)
            env[_PORT_FILE] = str(self._page_file)
        kind, _, env[INSTANCE] = name.partition("-")
        await self._keeper.keep(module(name, f"reknit.services.{kind}", env, self._logs.logs / f"{name}.log"))

    async def all_answer(self, bus: Bus, within: float) -> list[str]:
        """Wait until every service answers; returns those that do not."""
        deadline = time.monotonic() + within
        missing = list(self._names)
        while missing and time.monotonic() < deadline:
            there = await _answering(bus, self._names)
            missing = [name for name in self._names if name not in there]
        return missing

    # ------------------------------------------------------------------------------------------------------- watch

    async def watch(self, bus: Bus, moved: Callable[[], None]) -> None:
        """Keep broker and services alive until cancelled; `moved` is called when the broker is another process."""
        asked = time.monotonic()
        noted = self._broker_pid
        tended = asked
        pause = 0.1
        while True:
            await asyncio.sleep(0.1)
            if self._keeper.stopping():
                return
            try:
                if self._watch_broker():
                    # its services ended with the launcher that kept them
                    await self.serve(bus)
                if time.monotonic() - tended >= ASK_EVERY:
                    tended = time.monotonic()
                    self._tend()
                if self._broker_pid != noted:
                    noted = self._broker_pid
                    moved()
                pause = 0.1
            except ReknitError as error:
                self._say(f"the broker cannot be started again: {error}", True)
                await asyncio.sleep(pause)
                pause = min(5.0, pause * 2)
            if time.monotonic() - asked >= ASK_EVERY and bus.connected:
                await self._watch_services(bus)
                asked = time.monotonic()

    def _watch_broker(self) -> bool:
        """Start the broker again if it died; True if it was somebody else's until now."""
        if self.folder is None:
            return False
        if self.ours and self._broker is not None:
            if not self._broker.alive:
                self._say("the broker died; starting it again (training goes on meanwhile)", True)
                control.wait_for_store(self.folder.store)
                self._broker.start()
            return False
        if self.folder.name == "up" or self.folder.controlled or not self.own("run", patient=False):
            return False
        self._say("the launcher that kept the broker is gone: this one keeps it now", False)
        return True

    def _tend(self) -> None:
        """Have a broker of ours that can store nothing started again once it can; each change is said once."""
        wrong = self._broker.tend() if self.ours and self._broker is not None else ""
        if wrong and wrong != self._wrong:
            self._say(wrong, True)
        self._wrong = wrong

    async def _watch_services(self, bus: Bus) -> None:
        there = await _answering(bus, self._names)
        now = time.monotonic()
        if not bus.connected:
            there = set(self._names)  # nobody can answer: this says nothing about the services
        for name, state in self._services.items():
            if name in there:
                state.heard, state.answered = now, True
            elif not state.ours and now - state.heard >= SILENCE:
                self._say(f"the service {name} has been silent for {now - state.heard:.0f} s; starting one here", True)
                await self._start(name)
            elif state.ours and state.answered and now - state.heard >= HUNG and self._keeper.pid(name):
                self._say(f"the service {name} hangs; killing it, a new one takes over", True)
                state.heard, state.answered = now, False
                self._keeper.signal(name, signal.SIGKILL)

    # --------------------------------------------------------------------------------------------------------- end

    def stop(self) -> None:
        """End the broker politely and give the store back."""
        if self._broker is not None:
            self._broker.stop()
        self._held.close()

    def kill(self) -> None:
        """End the broker at once."""
        if self._broker is not None:
            self._broker.kill()


async def _answering(bus: Bus, names: Sequence[str]) -> set[str]:
    async def asks(name: str) -> bool:
        try:
            await bus.request(name, "ping", timeout=_ANSWER)
        except ControlPlaneUnreachable:
            return False
        return True

    answers = await asyncio.gather(*(asks(name) for name in names))
    return {name for name, there in zip(names, answers, strict=True) if there}
