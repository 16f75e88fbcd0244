"""A job on this machine with real launchers, one a node, beside a control plane of its own; its workers note each step.

Used like this:

    job = Job(place, "j")
    job.up()
    for name in "abc":
        job.node(name, "--nnodes", "3")
    job.until_trains({"a-0", "b-0", "c-0"})
    job.finish()
    job.check()
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
from collections.abc import Collection, Mapping
from typing import Any

import psutil

from support.agents import until
from support.launchers import Command, Place
from support.trainings import PACE, SCRIPT, STEPS_AN_EPOCH, Notes, Step, calm

PATIENCE = 120.0
"""A deadline against a hang, on however busy a machine."""


class Job:
    """See the module.

    Args:
        place: where all is kept.
        name: of the job; "": the nodes give none.
        script: of the workers; one that notes its steps as that of `trainings` does.
        epochs: of the whole run; the default is more than any test waits for.
    """

    def __init__(self, place: Place, name: str, *, script: str = SCRIPT, epochs: int = 100_000) -> None:
        self.place, self.name = place, name
        self.epochs = epochs
        self.folder = place.folder / f"steps-{name or len(place.commands)}"
        self.folder.mkdir()
        self._notes = Notes(self.folder)
        self._script = place.script("train.py", script)
        self.launchers: dict[str, Command] = {}

    def up(self, env: Mapping[str, str] | None = None) -> None:
        """Start broker and services."""
        self.place.call("up", env=self.place.env | dict(env or {}))

    def node(self, node: str, *flags: str, env: Mapping[str, str] | None = None) -> Command:
        """Start a launcher; `env`: more of its environment."""
        named = ("--job", self.name) if self.name else ()
        args = (str(self.folder), str(PACE), str(self.epochs), "-1")
        full = self.place.env | {"OMP_NUM_THREADS": "1"} | dict(env or {})
        command = self.place.start("run", *named, "--node", node, *flags, str(self._script), *args, env=full)
        self.launchers[node] = command
        return command

    # ------------------------------------------------------------------------------------------------- what happens

    def steps(self) -> list[Step]:
        """All steps completed so far."""
        return self._notes.read()

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Events of a kind as the log has them, each with when it was stored; none while there is no such job."""
        told = self.place.call("events", "--job", self.name, "--json", code=None)
        rows = [] if told.process.returncode else json.loads("\n".join(told.out))
        return [row["event"] | {"at": row["time"]} for row in rows if row["event"]["kind"] == kind]

    def worlds(self) -> list[dict[str, Any]]:
        """All running worlds."""
        return [e for e in self.events("world.changed") if e["status"] == "running"]

    def roles(self) -> dict[str, str]:
        """Members of the newest running world, each with its role."""
        worlds = self.worlds()
        return {m["worker"]: m["role"] for m in worlds[-1]["members"]} if worlds else {}

    def until_trains(self, workers: Collection[str], slots: Collection[str] | None = None) -> None:
        """Wait until exactly these take part in the newest world, and each has completed a step in it.

        Args:
            workers: members.
            slots: those of them that compute; all, if not given.
        """

        def trains() -> bool:
            worlds = self.worlds()
            if not worlds or {m["worker"] for m in worlds[-1]["members"]} != set(workers):
                return False
            there = {s.worker for s in self.steps() if s.generation == worlds[-1]["generation"]}
            computing = {s.worker for s in self.steps() if s.generation == worlds[-1]["generation"] and s.slots}
            return there >= set(workers) and computing >= set(workers if slots is None else slots)

        with self._told():
            until(lambda: bool(self.steps()) and trains(), f"{sorted(workers)} train", PATIENCE)

    def pid(self, worker: str) -> int:
        """Of the process that completed this worker's newest step."""
        return max((s for s in self.steps() if s.worker == worker), key=lambda s: s.time).pid

    # ------------------------------------------------------------------------------------------------- what is done

    def kill_node(self, node: str) -> None:
        """SIGKILL a launcher and all that is below it."""
        launcher = psutil.Process(self.launchers[node].pid)
        for process in [launcher, *launcher.children(recursive=True)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
        self.launchers.pop(node).wait()

    def go(self) -> None:
        """Let the scripts run at full speed."""
        (self.folder / "go").touch()

    def stop(self) -> None:
        """Stop the run politely, as a person would, and wait for all launchers."""
        self.go()
        self.place.call("stop", "--job", self.name)
        for launcher in self.launchers.values():
            launcher.wait(PATIENCE)

    def check(self) -> int:
        """Compare each completed step with the calm run's, and prove the ledger; how many steps there were."""
        steps = self.steps()
        expected = calm(self.folder / "calm", max(s.step for s in steps) + 1)
        wrong = [s for s in steps if s.digest != expected[s.step]]
        assert not wrong, f"{len(wrong)} of {len(steps)} steps are not the calm run's, first {wrong[0]}"
        assert {s.step for s in steps} == set(expected), "steps that nobody completed"
        assert len({(s.pid, s.step) for s in steps}) == len(steps), "a process completed a step twice"
        proof = self.place.json("ledger", "verify", "--job", self.name)
        assert proof["ok"], proof
        return len(expected)

    @property
    def total(self) -> int:
        """Steps of the whole run."""
        return self.epochs * STEPS_AN_EPOCH

    @contextlib.contextmanager
    def _told(self) -> Any:
        try:
            yield
        except AssertionError as error:
            shown = [f"--- {node}\n" + "\n".join(c.err[-15:]) for node, c in self.launchers.items()]
            worlds = [f"g{w['generation']} {w['reason']}" for w in self.events("world.changed")[-8:]]
            raise AssertionError("\n".join([str(error), *worlds, *shown])) from None
