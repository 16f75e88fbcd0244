"""Many simulated workers and agents, each with a connection of its own: their starter's side.

Used like this:

    crowd = Crowd(offspring, folder, endpoint, {"n0": ["n0-0", "n0-1"]}, processes=2)
    ids = crowd.connected()
    crowd.tell({"generation": 1})       # heartbeats say so from now on
    crowd.tell({"end": "n0-1"})         # its connection ends
    crowd.arrivals(after=812)           # when the next world came to each of them
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from job import NAME, SCRIPTS
from offspring import Offspring

from reknit.core.address import split
from reknit.core.context import Endpoint

BEAT = 0.25
"""Seconds between two heartbeats of one member."""
WITHIN = 120.0


class Crowd:
    """Simulated workers and agents in some processes of their own."""

    def __init__(
        self, offspring: Offspring, folder: Path, endpoint: Endpoint, nodes: dict[str, list[str]], processes: int
    ) -> None:
        """Start them; `connected` waits until all are.

        Args:
            offspring: whose processes they are.
            folder: to work in.
            endpoint: where the broker is.
            nodes: node -> its workers.
            processes: that they share.
        """
        host, port = split(endpoint.url.removeprefix("nats://"))
        names = [name for node, workers in nodes.items() for name in (f"@{node}", *workers)]
        shares = [names[i::processes] for i in range(processes)]
        self._said: queue.Queue[dict[str, Any]] = queue.Queue()
        self._processes = []
        self._home_of = {name: number for number, share in enumerate(shares) for name in share}
        for share in shares:
            told = {"host": host, "port": port, "user": endpoint.user, "password": endpoint.password}
            told |= {"job": NAME, "names": share, "nodes": nodes, "beat": BEAT}
            process = subprocess.Popen(
                [sys.executable, "-P", str(SCRIPTS / "crowd_member.py"), json.dumps(told)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=offspring.environment("crowd", {}),
                cwd=folder,
            )
            self._processes.append(process)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [process.pid for process in self._processes]

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put(json.loads(line))

    def connected(self) -> dict[str, int]:
        """Wait until all are connected; name -> client id."""
        found: dict[str, int] = {}
        for _ in self._processes:
            found |= self._heard("connected", WITHIN)["connected"]
        return found

    def tell(self, order: dict[str, Any]) -> None:
        """Tell all of them, or those that a name belongs to."""
        chosen = [self._home_of[order["end"]]] if "end" in order else range(len(self._processes))
        for number in chosen:
            pipe = self._processes[number].stdin
            assert pipe is not None
            pipe.write(json.dumps(order) + "\n")
            pipe.flush()

    def arrivals(self, after: int) -> list[float]:
        """Wait until a world later than a sequence of the log has come to all; the monotonic time of each arrival."""
        at: list[float] = []
        for _ in self._processes:
            said = self._heard("seq", WITHIN)
            while said["seq"] <= after:
                said = self._heard("seq", WITHIN)
            at += said["at"]
        return at

    def _heard(self, what: str, within: float) -> dict[str, Any]:
        try:
            said = self._said.get(timeout=within)
        except queue.Empty:
            raise TimeoutError(f"the crowd did not say {what!r} within {within:g} s") from None
        if what not in said:
            raise RuntimeError(f"the crowd is not as it should be: {said}")
        return said
