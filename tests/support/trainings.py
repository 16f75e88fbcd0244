"""A job on several hosts, with real launchers, agents, workers, broker and services; and what its workers note.

Used like this:

    run = Training(place, hosts, ["a", "b", "c", "d"])
    run.begin()                              # the control plane has a host of its own
    at = run.now()
    hosts.cut(run.host("b"), run.host("c"))
    seconds = run.mended(at, ["a-0", "b-0", "c-0", "d-0"])
    run.finish()
    run.check()                              # every step that any worker completed is the calm run's, bit for bit

Each worker writes a line for each step that it has completed, with a digest of its whole state after it: a single wrong
bit shows in the step that brought it, also when the run is never finished.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

from support.agents import until
from support.hosts import Host, Hosts
from support.launchers import Command, Place

PLANE = "plane"
JOB = "t"
SLOTS = 8
START = 120.0
"""Seconds until all train. A deadline against a hang, on however busy a machine; nothing is measured against it."""
MEND = 90.0
"""Seconds until steps are committed again after a break: the same kind of deadline."""
PACE = 0.02
"""Seconds longer a micro-batch takes until `go` is there: time for a test to break something in mid-step."""

SCRIPT = '''
"""Batch norm, dropout, Adam, an uneven last batch; a line for each completed step."""

import json
import os
import pathlib
import sys
import time

import torch
import xxhash
from torch import nn
from torch.utils.data import TensorDataset

import reknit

folder, pace, epochs, most = pathlib.Path(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(499, 16), torch.randint(0, 4, (499,)))
layers = [nn.Linear(16, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Dropout(0.2), nn.Linear(256, 256), nn.ReLU()]
model = nn.Sequential(*layers, nn.Linear(256, 4))
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
go = folder / "go"


def digest():
    hasher = xxhash.xxh3_64()
    for state in [model.state_dict(), *optimizer.state.values()]:
        for name in sorted(state):
            hasher.update(state[name].detach().contiguous().numpy().tobytes())
    return hasher.hexdigest()


with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    diary = (folder / f"{ring.id}.{os.getpid()}.jsonl").open("a", buffering=1)
    for step in ring.steps(data, micro_batch=8, slots=8, epochs=epochs, seed=3):
        computed = 0
        for x, y in step:
            if pace and not go.exists():
                time.sleep(pace)
            step.backward(nn.functional.cross_entropy(model(x), y))
            computed += 1
        optimizer.step()
        line = {"step": step.index, "generation": step.generation, "time": time.time(), "pid": os.getpid()}
        diary.write(json.dumps({**line, "worker": ring.id, "slots": computed, "digest": digest()}) + "\\n")
        if step.index + 1 == most:
            break
'''
STEPS_AN_EPOCH = 8


@dataclasses.dataclass(frozen=True)
class Step:
    """One step that one process has completed; `digest` is of its whole state after it."""

    step: int
    generation: int
    time: float
    pid: int
    worker: str
    slots: int
    digest: str


class Notes:
    """The lines of a folder's diaries, read on while they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._places: dict[Path, int] = {}
        self._steps: list[Step] = []

    def read(self) -> list[Step]:
        """All steps noted so far."""
        for file in sorted(self._folder.glob("*.jsonl")):
            at = self._places.get(file, 0)
            with file.open("rb") as lines:
                lines.seek(at)
                whole = lines.read().rpartition(b"\n")[0]
            if whole:
                self._places[file] = at + len(whole) + 1
                self._steps += [Step(**json.loads(line)) for line in whole.splitlines()]
        return self._steps


def calm(folder: Path, steps: int) -> dict[int, str]:
    """Digest of the state after each of the first `steps` steps of a run of one process that nothing happens to."""
    folder.mkdir(parents=True)
    script = folder / "train.py"
    script.write_text(SCRIPT)
    epochs = -(-steps // STEPS_AN_EPOCH)
    env = {k: v for k, v in os.environ.items() if not k.startswith("REKNIT_")}
    command = [sys.executable, str(script), str(folder), "0", str(epochs), str(steps)]
    subprocess.run(command, check=True, env=env | {"OMP_NUM_THREADS": "1"}, timeout=300)
    return {s.step: s.digest for s in Notes(folder).read()}


class Training:
    """See the module.

    Args:
        place: where all is kept.
        hosts: the network.
        nodes: a host each.
        workers: a node.
        epochs: of the whole run; the default is more than any test waits for.
        flags: more flags of `reknit run`.
        script: of the workers; one that notes its steps as this one does.
    """

    def __init__(
        self,
        place: Place,
        hosts: Hosts,
        nodes: Sequence[str],
        *,
        workers: int = 1,
        epochs: int = 100_000,
        pace: float = PACE,
        flags: Sequence[str] = (),
        script: str = SCRIPT,
    ) -> None:
        self.place, self.hosts = place, hosts
        self.nodes = list(nodes)
        self._workers, self._epochs, self._pace, self._flags = workers, epochs, pace, tuple(flags)
        self.folder = place.folder / "steps"
        self.folder.mkdir()
        self._notes = Notes(self.folder)
        self._script = place.script("train.py", script)
        self.launchers: dict[str, Command] = {}
        self._events: Command | None = None
        self._rows: list[dict[str, Any]] = []
        self.up: Command | None = None
        for name in (PLANE, *nodes):
            if name not in hosts.hosts:
                hosts.add(name)

    # ------------------------------------------------------------------------------------------------- processes

    def host(self, node: str) -> Host:
        """The host of a node, or of one of its workers."""
        return self.hosts.hosts[node.partition("-")[0]]

    def _home(self, name: str) -> Path:
        return self.place.home / name

    def _start(self, name: str, *args: str) -> Command:
        env = self.place.env | {"REKNIT_HOME": str(self._home(name)), "OMP_NUM_THREADS": "1"}
        self._home(name).mkdir(parents=True, exist_ok=True)
        return self.place.start(*args, env=env, wrap=self.hosts.hosts[name].wrap)

    def begin(self, *, trains: bool = True) -> None:
        """Start everything and wait until all workers train together, if that is to be waited for."""
        self.start_plane()
        secret = self.place.folder / "secret"
        secret.write_text("a secret of this test\n")
        secret.chmod(0o600)
        self._entry = ("--nats", str(self._home(PLANE) / "up" / "endpoint.json"), "--secret-file", str(secret))
        for node in self.nodes:
            self.start_node(node)
        if trains:
            self.trained()

    def trained(self) -> None:
        """Wait until all workers train together for the first time."""
        until(self.steps, f"the first step\n{self.told()}", START)
        self.until_trains(self.everybody, within=START)

    def start_plane(self) -> None:
        """Start broker and services, on the port that they had before, and wait until they answer."""
        up = self._home(PLANE) / "up" / "up.json"
        up.unlink(missing_ok=True)
        self.up = self._start(PLANE, "up", "--foreground", "--host", self.hosts.hosts[PLANE].address)
        until(up.exists, "the control plane", START)

    @property
    def everybody(self) -> set[str]:
        """All workers that there are to be."""
        return {f"{node}-{i}" for node in self.nodes for i in range(self._workers)}

    def whole(self, since: float | None = None) -> None:
        """Wait until all workers train together and go on doing so."""
        self.until_trains(self.everybody, since)
        self.goes_on(self.everybody)

    def start_node(self, node: str) -> Command:
        """Start a node's launcher."""
        size = ("--nnodes", f"1:{len(self.nodes)}", "--nproc-per-node", str(self._workers), "--last-call", "60")
        args = (str(self.folder), str(self._pace), str(self._epochs), "-1")
        command = self._start(
            node, "run", "--job", JOB, "--node", node, *size, *self._entry, *self._flags, str(self._script), *args
        )
        self.launchers[node] = command
        return command

    def pids(self, node: str, of: str = "") -> list[int]:
        """Living processes of a host whose command line has this in it, ours first, by age."""
        mark = f"REKNIT_HOME={self._home(node)}".encode()
        return [pid for pid in sorted(self.place.processes()) if mark in environ(pid) and of in command_of(pid)]

    def worker(self, name: str) -> int:
        """Pid of a worker that trains."""
        return max((s for s in self.steps() if s.worker == name), key=lambda s: s.time).pid

    def signal(self, number: int, *pids: int) -> float:
        """Send a signal to several processes, the youngest first; when."""
        at = time.time()
        for pid in sorted(pids, reverse=True):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        return at

    # ------------------------------------------------------------------------------------------------- what happens

    @staticmethod
    def now() -> float:
        """The clock of the notes."""
        return time.time()

    def steps(self) -> list[Step]:
        """All steps completed so far."""
        return self._notes.read()

    def trains(self, since: float) -> set[str]:
        """Members of the newest running world that computed a part of their last step, in that world."""
        newest: dict[str, Step] = {}
        for step in self.steps():
            if step.worker not in newest or step.time >= newest[step.worker].time:
                newest[step.worker] = step
        worlds = self.worlds()
        if not worlds:
            return set()
        generation, members = worlds[-1]["generation"], {m["worker"] for m in worlds[-1]["members"]}
        # (who has just come back may have computed slots that were never used, of the step that it was left out of)
        return {
            w for w, s in newest.items() if w in members and s.generation == generation and s.slots and s.time > since
        }

    def until_trains(self, workers: Collection[str], since: float | None = None, within: float = MEND) -> None:
        """Wait until exactly these workers train together."""
        since = self.now() if since is None else since
        try:
            until(lambda: self.trains(since) == set(workers), "", within)
        except AssertionError:
            told = f"{sorted(self.trains(since))} train, not {sorted(workers)}\n{self.told()}"
            raise AssertionError(told) from None

    def generation(self, at: float) -> int:
        """The newest world in which a step had been completed at some moment."""
        return max((s.generation for s in self.steps() if s.time <= at), default=0)

    def mended(self, at: float, workers: Iterable[str], within: float = MEND) -> float:
        """Seconds from `at` until the last of these workers had completed its first step of a newer world."""
        before, names = self.generation(at), list(workers)

        def firsts() -> list[float]:
            after = [s for s in self.steps() if s.time > at and s.generation > before]
            times = [min((s.time for s in after if s.worker == w), default=0.0) for w in names]
            return times if all(times) else []

        try:
            return max(until(firsts, "", within)) - at
        except AssertionError:
            raise AssertionError(f"no step in a newer world than {before} of all of {names}\n{self.told()}") from None

    def goes_on(self, workers: Iterable[str], steps: int = 3, within: float = MEND) -> None:
        """Wait until each of these has completed some more steps."""
        at, names = self.now(), list(workers)

        def done() -> bool:
            after = [s.worker for s in self.steps() if s.time > at]
            return all(after.count(w) >= steps for w in names)

        try:
            until(done, "", within)
        except AssertionError:
            raise AssertionError(f"not {steps} more steps of all of {names}\n{self.told()}") from None

    def longest_pause(self, worker: str, since: float, end: float) -> float:
        """The longest time between two steps of a worker."""
        times = [since, *sorted(s.time for s in self.steps() if s.worker == worker and since < s.time < end), end]
        return max(b - a for a, b in itertools.pairwise(times))

    def events(self, kind: str, since: float = 0.0) -> list[dict[str, Any]]:
        """Events of a kind as the log has them, followed by `reknit events` on the control plane's own host."""
        if self._events is None or self._events.process.poll() is not None:
            # it ends with its broker's host, and while there is no job yet; then it reads the log from its beginning
            self._events = self._start(PLANE, "events", "--job", JOB, "--follow", "--json")
        return [
            row["event"] | {"at": row["time"]}
            for row in map(json.loads, list(self._events.out))
            if row["event"]["kind"] == kind and row["time"] > since
        ]

    def event(self, kind: str, since: float = 0.0, within: float = MEND, **fields: Any) -> dict[str, Any]:
        """Wait for an event of a kind with these fields."""

        def found() -> list[dict[str, Any]]:
            return [e for e in self.events(kind, since) if all(e[f] == v for f, v in fields.items())]

        try:
            return until(found, "", within)[0]
        except AssertionError:
            raise AssertionError(f"no {kind} with {fields}\n{self.told()}") from None

    def json(self, *args: str) -> Any:
        """What a command says of the job on the control plane's host, with `--json`."""
        command = self._start(PLANE, *args, "--job", JOB, "--json")
        assert command.wait() == 0, command.shown
        return json.loads("\n".join(command.out))

    def worlds(self) -> list[dict[str, Any]]:
        """All running worlds."""
        return [e for e in self.events("world.changed") if e["status"] == "running"]

    def world(self) -> dict[str, Any]:
        """The newest running world, not older than one in which a step has been completed."""
        generation = self.generation(self.now())
        newest = until(lambda: [w for w in self.worlds() if w["generation"] >= generation], f"world {generation}")
        return newest[-1]

    def ring(self) -> list[str]:
        """Workers of the newest running world, in ring order."""
        return [m["worker"] for m in self.world()["members"]]

    def evicted(self, since: float) -> set[str]:
        """Workers that some world since then was made without."""
        self.world()
        return {w for e in self.events("world.changed", since) for w in e["removed"]}

    # ------------------------------------------------------------------------------------------------- end

    def finish(self, within: float = START) -> None:
        """Stop the run politely, as a person would."""
        (self.folder / "go").touch()
        self._start(PLANE, "stop", "--job", JOB).wait()
        for node in self.nodes:
            self.launchers[node].wait(within)

    def check(self) -> int:
        """Compare every step that any worker ever completed with the calm run's; how many different steps there were.

        Also: no process has completed a step twice, no two processes differ in one, and the ledger verifies.
        """
        steps = self.steps()
        expected = calm(self.place.folder / "calm", max(s.step for s in steps) + 1)
        wrong = [s for s in steps if s.digest != expected[s.step]]
        assert not wrong, f"{len(wrong)} of {len(steps)} steps are not the calm run's, first {wrong[0]}\n{self.told()}"
        assert {s.step for s in steps} == set(expected), "steps that nobody completed"
        each = [(s.pid, s.step) for s in steps]
        assert len(each) == len(set(each)), "a process completed a step twice"
        ledger = self._start(PLANE, "ledger", "verify", "--job", JOB, "--json")
        assert ledger.wait() == 0, ledger.shown
        return len(expected)

    def told(self) -> str:
        """What there is to say about a run that does not do what it should."""
        steps = self.steps()
        last = {s.worker: f"{s.step} (world {s.generation}, {self.now() - s.time:.1f} s ago)" for s in steps}
        worlds = [
            f"g{e['generation']} {e['status']} {[m['worker'] for m in e['members']]}: {e['reason']}"
            for e in (self.events("world.changed") if self._events else [])
        ]
        shown = [f"--- {n}\n" + "\n".join(c.err[-15:]) for n, c in self.launchers.items()]
        return "\n".join([f"last steps: {last}", *worlds[-8:], *shown])

    def end(self) -> None:
        """End everything, by force."""
        for pid in self.place.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.place.clean()


def environ(pid: int) -> set[bytes]:
    """A process's environment; empty when it is gone."""
    try:
        return set(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"))
    except OSError:
        return set()


def command_of(pid: int) -> str:
    """A process's command line; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
