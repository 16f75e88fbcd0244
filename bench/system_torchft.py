"""torchft as a system under measurement: a lighthouse, and one process a replica."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

from job import SCRIPTS
from offspring import Offspring
from processes import Processes
from shock import Shock
from steplog import mended_at

README = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")
"""The lighthouse's settings in torchft's README; a replica is dead after 5 s without a heartbeat by default."""
TUNED = ("--min_replicas", "1", "--quorum_tick_ms", "10", "--join_timeout_ms", "100", "--heartbeat_timeout_ms", "500")


class Torchft(Processes):
    """torchft with the settings of its README. A replica that died is started again by the benchmark."""

    within = 90.0
    """Now and then the survivors wait out a collective with the dead one: 60 s."""
    shocks_a_run = 0
    events = ("kill-worker", "freeze")
    lighthouse: tuple[str, ...] = README
    settings = f"lighthouse {' '.join(README)}; manager.allreduce of one flat gradient, no DDP wrapper"
    python: Path

    def __init__(self, offspring: Offspring, folder: Path, event: str, workers: int) -> None:
        super().__init__(offspring, folder)
        self.event = event
        self._names = [f"replica{i}" for i in range(workers)]
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def start(self) -> None:
        """Start the lighthouse and all replicas."""
        command = [str(self.python.parent / "torchft_lighthouse"), "--bind", f"127.0.0.1:{self._port}"]
        self._run("lighthouse", [*command, *self.lighthouse])
        for name in self._names:
            self.restore(name)

    def victims(self) -> dict[str, set[int]]:
        """Replicas."""
        return self.workers()

    def strike(self, victim: str) -> float:
        """Let the event happen."""
        return self.signal(victim, signal.SIGSTOP if self.event == "freeze" else signal.SIGKILL)

    def restore(self, victim: str) -> None:
        """Start a replica; one that is frozen is killed before."""
        self.offspring.kill(victim)
        script = str(SCRIPTS / "steps_torchft.py")
        self._run(victim, [str(self.python), script, str(self.steps), victim, str(len(self._names))])

    def _run(self, tag: str, command: list[str]) -> None:
        env = {"TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self._port}", "OMP_NUM_THREADS": "1"}
        self.offspring.start(command, tag=tag, log=self.folder / "printed.log", env=env, cwd=self.folder)

    def recovered_at(self, _before: set[int], survivors: set[int], at: float) -> float | None:
        """When the last survivor had committed a step of a newer quorum."""
        return mended_at(self.reader.look(), survivors, at)

    def stages(self, shocks: list[Shock]) -> list[Shock]:
        """It tells nothing that could be compared."""
        return shocks

    def stop(self) -> None:
        """End all."""
        self.offspring.end(0.0)


class TunedTorchft(Torchft):
    """torchft with short time-outs."""

    lighthouse = TUNED
    settings = f"lighthouse {' '.join(TUNED)}; manager.allreduce of one flat gradient, no DDP wrapper"
