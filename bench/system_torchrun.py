"""torchrun with DDP over gloo as a system under measurement."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from job import SCRIPTS
from offspring import Offspring
from processes import Processes
from shock import Shock
from steplog import restarted_at

SETTINGS = "defaults, but --max-restarts 1000000 and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1; saved every 20 steps"


class Torchrun(Processes):
    """torchrun, settings at their defaults but two.

    Restarts are not limited. torch 2.13 shares its rendezvous store with the workers by default, which makes
    half of all restarts over gloo hang; the switch that avoids it is set.
    """

    within = 180.0
    shocks_a_run = 0
    events = ("kill-worker", "kill-node", "freeze")
    settings = SETTINGS

    def __init__(self, offspring: Offspring, folder: Path, event: str, workers: int) -> None:
        super().__init__(offspring, folder)
        self.event = event
        if event == "freeze":
            self.within = 60.0  # nothing is going to be noticed: the collective's time-out is 30 minutes
        self.nodes = [f"n{i}" for i in range(workers if event == "kill-node" else 1)]
        self._each = workers // len(self.nodes)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self._port = free.getsockname()[1]

    def start(self) -> None:
        """Start all workers."""
        for node in self.nodes:
            self._start_node(node)

    def victims(self) -> dict[str, set[int]]:
        """Workers, or nodes; not the first node, which hosts the store: without it the job is lost."""
        if self.event != "kill-node":
            return self.workers()
        return {node: self.on_node(node) for node in self.nodes[1:]}

    def strike(self, victim: str) -> float:
        """Let the event happen."""
        if self.event == "kill-node":
            return self.offspring.kill(victim)
        return self.signal(victim, signal.SIGSTOP if self.event == "freeze" else signal.SIGKILL)

    def restore(self, victim: str) -> None:
        """Start a killed node again."""
        if self.event == "kill-node":
            self._start_node(victim)

    def _start_node(self, node: str) -> None:
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(self._each)]
        command += ["--max-restarts", "1000000"]
        if len(self.nodes) > 1:
            command += ["--nnodes", f"1:{len(self.nodes)}", "--rdzv-backend", "c10d", "--rdzv-id", "bench"]
            command += ["--rdzv-endpoint", f"127.0.0.1:{self._port}"]
        else:
            command += ["--standalone"]
        env = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
        command += [str(SCRIPTS / "steps_torchrun.py"), str(self.steps)]
        self.offspring.start(command, tag=node, log=self.folder / "printed.log", env=env, cwd=self.folder)

    def recovered_at(self, before: set[int], _survivors: set[int], at: float) -> float | None:
        """When the first new process had completed a step."""
        return restarted_at(self.reader.look(), before, at)

    def stages(self, shocks: list[Shock]) -> list[Shock]:
        """It tells nothing."""
        return shocks

    def stop(self) -> None:
        """End all."""
        self.offspring.end()
