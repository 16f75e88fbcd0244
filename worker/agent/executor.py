"""Carries out an agent's last will: a thread of the guard that costs nothing until the agent has ended."""

from __future__ import annotations

import threading
from contextlib import suppress

from reknit.core.bus_thread import BusThread
from reknit.core.errors import ReknitError, Unauthorized
from reknit.core.events import AgentLeft

from . import procfs
from .last_will import Text
from .lifeline import Lifeline

_LOOK_UP = 10.0
"""Seconds after which the thread looks whether the lock is still there; it is woken long before that."""
_CONNECT = 2.0
_PAUSE, _LONGEST_PAUSE = 0.2, 5.0
"""Seconds between two tries to reach the broker."""
_SAY_WITHIN = 1.0
"""Seconds that the guard stays for the broker's word that it has it."""


class Executor:
    """Says that a node is gone, once, when its agent has ended.

    The event has the id that the agent's own farewell has: whichever comes first is stored, the other not. Nothing is
    killed before it is said, which would cost time: the agent's end is the end of its node in any case, by the guard's
    hand, or by the kernel's if the guard is killed too (each process below it ends with its parent).
    """

    def __init__(self, will: Text, line: Lifeline, agent: int) -> None:
        """Prepare.

        Args:
            will: what to say, and where.
            line: broken when the agent ends.
            agent: its pid.
        """
        self._will, self._line, self._agent = will, line, agent
        self._thread = threading.Thread(target=self._run, name="executor", daemon=True)

    def start(self) -> None:
        """Watch from now on; the broker is connected to as soon as there is one."""
        self._thread.start()

    def finish(self) -> None:
        """Return when it is said, if there is something to say; soon in any case."""
        if procfs.is_ending(self._agent):
            self._thread.join(_SAY_WITHIN)

    def _run(self) -> None:
        with suppress(OSError):  # the lock cannot be waited for: others will notice
            bus = self._connected()
            if bus is None:
                return
            while not self._line.broken(_LOOK_UP):
                pass
            if procfs.is_ending(self._agent):  # an exec breaks it too
                self._say(bus)

    def _connected(self) -> BusThread | None:
        """Reach the broker; None if it refuses us, or the agent ends before."""
        pause = 0.0
        while not self._line.broken(pause):
            bus = BusThread(self._will.endpoint, source=f"guard/{self._will.node}")
            try:
                bus.start(timeout=_CONNECT)
            except Unauthorized:
                return None
            except ReknitError:
                pause = min(max(2 * pause, _PAUSE), _LONGEST_PAUSE)
            else:
                return bus
        return None

    def _say(self, bus: BusThread) -> None:
        joined = self._line.note
        if not joined:
            return  # it never came
        node = self._will.node
        event = AgentLeft(node=node, reason=f"its agent (pid {self._agent}) ended", arrival=joined, swept=True)
        with suppress(ReknitError):
            bus.publish(self._will.job, event, id=f"left/{node}/{joined}", deadline=_SAY_WITHIN)
