"""A run that loses a worker by SIGKILL in mid step, and what became of it, told from the job's own records.

    make demo
    python examples/demo.py --kill 0           # the ring's first worker instead of the second
    python examples/demo.py --json             # the same for machines

Trains `digits.py` with three workers through the real command line, kills one in mid run, waits for the end, then runs
the same training calmly with one worker. Exit code 1 unless all of it holds: the step in flight was finished, nobody
else was restarted, the replacement computed again, the weights are the same bits, every sample was used once.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
REKNIT = [str(Path(sys.executable).with_name("reknit"))]
JOB, CALM = "demo", "calm"
WORKERS = 3
NOTICES = ("ring.broken", "worker.dying", "worker.exited", "worker.unreachable")
"""Kinds of events that are evidence of a death."""

TRIES = 3
"""Trainings at most, each twice as long, until one is long enough for the replacement to take part."""
PATIENCE = 600
"""Seconds that a job may take; the calm one takes half a minute on two quiet cores."""


class Failed(Exception):
    """The demo could not be played to its end; the text says why."""


# ------------------------------------------------------------------------------------------------------ commands


class Stage:
    """A home of its own, and the commands that run in it; all of them ended at the exit."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.job = JOB
        # one thread each: the bits of a sum depend on how many threads computed it
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("REKNIT_", "PET_"))}
        self.env |= {"REKNIT_HOME": str(home), "REKNIT_THREADS": "1", "NO_COLOR": "1"}
        self._running: list[subprocess.Popen[str]] = []

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start a `reknit` command; its output goes into pipes."""
        process = subprocess.Popen(
            [*REKNIT, *args],
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._running.append(process)
        return process

    def json(self, *args: str) -> Any:
        """Run a `reknit` command to its end; returns the document it wrote."""
        process = self.start(*args, "--json")
        out, err = process.communicate(timeout=60)
        try:
            return json.loads(out)
        except ValueError:
            raise Failed(f"`reknit {' '.join(args)}` exited with {process.returncode}:\n{err.strip()}") from None

    def end(self) -> None:
        """End what still runs: politely, then at once."""
        for process in self._running:
            for patience in (10.0, 5.0):
                if process.poll() is not None:
                    break
                process.terminate()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(patience)
            if process.poll() is None:
                process.kill()
                process.wait()


class Lines:
    """The lines of a pipe, collected on a thread as they come."""

    def __init__(self, pipe: Any, show: Callable[[str], None] | None = None) -> None:
        self.all: list[str] = []
        self._show = show
        self._thread = threading.Thread(target=self._read, args=(pipe,), daemon=True)
        self._thread.start()

    def _read(self, pipe: Any) -> None:
        for line in pipe:
            self.all.append(line.rstrip("\n"))
            if self._show:
                self._show(line.rstrip("\n"))

    def settle(self) -> list[str]:
        """All lines, once the pipe has ended."""
        self._thread.join(5.0)
        return self.all


# ------------------------------------------------------------------------------------------------------ the play


@dataclasses.dataclass(slots=True)
class Kill:
    """What was done, and when (seconds since the epoch)."""

    worker: str
    pid: int
    at: float


def train(stage: Stage, epochs: int, victim: int | None, show: Callable[[str], None]) -> tuple[Kill | None, dict]:
    """Train, killing the ring's `victim`-th worker in mid run; returns what was killed and what the script printed."""
    job, workers = (CALM, 1) if victim is None else (stage.job, WORKERS)
    run = stage.start(
        *("run", "--job", job, "--nproc-per-node", str(workers)),
        *(str(HERE / "digits.py"), "--epochs", str(epochs)),
    )
    out, err = Lines(run.stdout), Lines(run.stderr, show)
    kill = None if victim is None else kill_in_mid_run(stage, run, victim)
    try:
        code = run.wait(PATIENCE)
    except subprocess.TimeoutExpired:
        last = "\n".join(err.settle()[-20:])
        raise Failed(f"job {job} has not ended after {PATIENCE} s; a busy machine? Its last lines:\n{last}") from None
    if code:
        raise Failed(f"`reknit run` exited with {code}:\n" + "\n".join(err.settle()[-20:]))
    for line in out.settle():
        with contextlib.suppress(ValueError):
            return kill, json.loads(line.partition("] ")[2])
    raise Failed(f"job {job} printed no result")


def kill_in_mid_run(stage: Stage, run: subprocess.Popen[str], victim: int) -> Kill:
    """Wait until steps are being committed, then kill a worker."""
    members: list[dict[str, Any]] = []
    for event in follow(stage, run):
        if event["kind"] == "world.changed" and event["status"] == "running":
            members = event["members"]
        if event["kind"] == "shards.committed" and len(members) == WORKERS:
            killed = members[victim]
            at = time.time()
            os.kill(killed["pid"], signal.SIGKILL)
            return Kill(killed["worker"], killed["pid"], at)
    raise Failed("the run ended before a worker could be killed")


def follow(stage: Stage, run: subprocess.Popen[str]) -> Iterator[dict[str, Any]]:
    """Yield the job's events as they are stored."""
    deadline = time.monotonic() + 60
    while run.poll() is None and time.monotonic() < deadline:
        if (stage.home / "jobs" / stage.job / "endpoint.json").is_file():
            events = stage.start("events", "--follow", "--json", "--job", stage.job)
            Lines(events.stderr)
            try:
                for line in events.stdout or ():
                    yield json.loads(line)["event"]
            finally:
                events.terminate()
        time.sleep(0.05)


# ------------------------------------------------------------------------------------------------------ the story


class Log:
    """The job's events, in order, with the moment of each in seconds after the kill."""

    def __init__(self, rows: list[dict[str, Any]], kill: Kill) -> None:
        self.rows = [(row["time"] - kill.at, row["source"], row["trace"], row["event"]) for row in rows]

    def after(self, *kinds: str, **fields: Any) -> Iterator[tuple[float, str, str, dict[str, Any]]]:
        """Events of these kinds after the kill whose fields have these values."""
        for row in self.rows:
            event = row[3]
            if row[0] > 0 and event["kind"] in kinds and all(event.get(k) == v for k, v in fields.items()):
                yield row

    def first(self, what: str, rows: Iterator[tuple[float, str, str, dict[str, Any]]]) -> Any:
        """The first of these events."""
        for row in rows:
            return row
        raise Failed(f"the job's log does not say {what}")


def is_replaced(log: Log, kill: Kill) -> bool:
    """True if slots of the replacement were committed."""
    caught = next(log.after("worker.caught_up", worker=kill.worker), None)
    return caught is not None and any(
        row[0] >= caught[0] and has_slots(row[3], kill.worker) for row in log.after("shards.committed")
    )


def tell(log: Log, kill: Kill, spans: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """Find the story in the log; times are seconds after the kill."""
    first = log.first
    noticed = min(log.after(*NOTICES), key=lambda row: row[0], default=None)
    if noticed is None:
        raise Failed("nobody noticed the death")
    changed = first(
        f"that {kill.worker} is out of the world",
        (row for row in log.after("world.changed") if kill.worker in row[3]["removed"]),
    )
    world = changed[3]
    generation = world["generation"]
    linked = list(log.after("ring.linked", generation=generation))
    if not linked:
        raise Failed("the ring was not linked again")
    recovered = first("that a step was committed after the kill", log.after("ring.recovered", generation=generation))
    started = first("that a replacement was started", log.after("worker.started", worker=kill.worker))
    joined = first(
        "that the replacement joined", (r for r in log.after("world.changed") if kill.worker in r[3]["added"])
    )
    caught = first("that the replacement caught up", log.after("worker.caught_up", worker=kill.worker))
    active = first(
        "that the replacement computed again",
        (r for r in log.after("shards.planned") if r[0] >= caught[0] and has_slots(r[3], kill.worker)),
    )
    computed = first(
        "that the replacement's slots were committed",
        (r for r in log.after("shards.committed") if r[0] >= active[0] and has_slots(r[3], kill.worker)),
    )
    trace = next((group for group in spans if group[0]["trace"] == changed[2][3:35]), [])
    return {
        "killed": {"worker": kill.worker, "pid": kill.pid},
        "noticed": {"after": noticed[0], "by": noticed[1], "how": how(noticed[3])},
        "world": {
            "after": changed[0],
            "generation": generation,
            "members": [m["worker"] for m in world["members"]],
            "reason": world["reason"],
            "evidence": [e["source"] for e in world["evidence"] if e["about"] == kill.worker],
        },
        "ring": {
            "after": ended(trace, "ring.roll_call", kill) or max(row[0] for row in linked),
            "link_seconds": max(row[3]["link_seconds"] for row in linked),
            "roll_call_seconds": max(row[3]["roll_call_seconds"] for row in linked),
            "decision": linked[0][3]["decision"],
        },
        "committed": {
            "after": ended(trace, "ring.first_commit", kill) or recovered[0],
            "step": recovered[3]["step"],
            "slots_computed_again": recovered[3]["computed_again"],
        },
        "replacement": {
            "pid": started[3]["pid"],
            "started_after": started[0],
            "joined_after": joined[0],
            "caught_up_after": caught[0],
            "caught_up_step": caught[3]["step"],
            "active_after": active[0],
            "active_step": computed[3]["first"],
        },
        "trace": {
            "id": changed[2][3:35],
            "spans": len(trace),
            "processes": len({span["process"] for span in trace}),
        },
    }


def ended(trace: list[dict[str, Any]], name: str, kill: Kill) -> float:
    """When the last process ended its span of this name, in seconds after the kill; 0 if there is none."""
    return max((span["end"] / 1e9 - kill.at for span in trace if span["name"] == name), default=0.0)


def has_slots(event: dict[str, Any], worker: str) -> bool:
    """True if the worker has slots in a plan or a ledger record."""
    return any(r["worker"] == worker and r["end"] > r["first"] for r in event["ranges"])


def how(event: dict[str, Any]) -> str:
    """A piece of evidence in words."""
    if event["kind"] == "ring.broken":
        return f"its link to {event['peer']} broke: {event['error']}"
    if event["kind"] == "worker.dying":
        return "it waits on a lock that the process holds, which the kernel takes away first of all"
    if event["kind"] == "worker.exited":
        return f"it waits on the process, which ended by {event['signal'] or event['code']}"
    return f"nobody listens at {event['address']} any more"


def checks(story: dict[str, Any], rows: list[dict[str, Any]], slots: int) -> dict[str, bool]:
    """What must hold."""
    kill = story["killed"]
    first = next(r["event"] for r in rows if r["event"]["kind"] == "world.changed" and r["event"]["members"])
    last = [r["event"] for r in rows if r["event"]["kind"] == "world.changed" and r["event"]["members"]][-1]
    pids = {m["worker"]: m["pid"] for m in first["members"] if m["worker"] != kill["worker"]}
    return {
        "the surviving processes are the same until the end": all(
            pids.get(m["worker"], m["pid"]) == m["pid"] for m in last["members"]
        )
        and len(last["members"]) == WORKERS,
        "at most the killed worker's own slots were computed again": story["committed"]["slots_computed_again"]
        <= slots // WORKERS,
        "the weights are the same bits as in a calm run of one worker": story["weights"] == story["calm_weights"],
        "every sample is in exactly one committed step of each epoch": story["ledger"],
        "over 97 % of the test set are right": story["accuracy"] > 0.97,
        "the change of the world is one trace through several processes": story["trace"]["processes"] >= 4,
    }


def ms(seconds: float) -> str:
    """A duration for people."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def narrate(story: dict[str, Any]) -> None:
    """Print the story."""
    killed, world, ring, again = story["killed"], story["world"], story["ring"], story["committed"]
    new, noticed, gap = story["replacement"], story["noticed"], story["longest_gap"]
    count, decision = again["slots_computed_again"], ring["decision"]
    lines = [
        (0.0, f"SIGKILL to {killed['worker']} (pid {killed['pid']}), in the middle of a step"),
        (noticed["after"], f"{noticed['by']} is the first to notice: {noticed['how']}"),
        (
            world["after"],
            f"membership: world {world['generation']} is {', '.join(world['members'])}; {world['reason']}",
        ),
        (
            ring["after"],
            f"ring linked ({ms(ring['link_seconds'])}); roll call ({ms(ring['roll_call_seconds'])}): {decision}",
        ),
        (
            again["after"],
            f"step {again['step']}, the one in flight, is committed; {count} of {story['slots']} slots computed again",
        ),
        (new["started_after"], f"the agent forks a replacement (pid {new['pid']})"),
        (new["joined_after"], "it has caught up beside the ring and is linked in; the others train on"),
        (new["caught_up_after"], f"it holds the state before step {new['caught_up_step']}"),
        (new["active_after"], f"a plan gives it slots again; it computes from step {new['active_step']} on"),
    ]
    print("\nWhat happened, in time after the kill:\n")
    for after, text in sorted(lines, key=lambda line: line[0]):
        print(f"  {ms(after):>10}  {text}")
    step = "at the kill" if gap["step"] == again["step"] else f"at step {gap['step']}"
    trace = story["trace"]
    equal = "equal" if story["weights"] == story["calm_weights"] else "DIFFERENT"
    table = {
        "longest gap between two steps": f"{ms(gap['seconds'])}, {step} (median {ms(story['median_gap'])})",
        "accuracy on the test set": f"{story['accuracy']:.2%}",
        "weights, this run": f"{story['weights'][:32]}…",
        "weights, calm run, one worker": f"{story['calm_weights'][:32]}…  {equal}",
        "ledger": "every sample in one committed step, once an epoch" if story["ledger"] else "NOT proved",
        "trace of the change": f"{trace['id'][:8]}…, {trace['spans']} spans of {trace['processes']} processes",
    }
    print()
    for name, value in table.items():
        print(f"  {name:<31} {value}")
    print()
    for what, holds in story["checks"].items():
        print(f"  {'yes' if holds else 'NO '}  {what}")


def play(stage: Stage, epochs: int, victim: int, show: Callable[[str], None]) -> dict[str, Any]:
    """Run both trainings; returns the story."""
    began = time.monotonic()
    show(f"training with {WORKERS} workers; one of them will be killed")
    for attempt in range(1, TRIES + 1):
        kill, result = train(stage, epochs, victim, show)
        assert kill is not None
        rows = stage.json("events", "--job", stage.job)
        if attempt == TRIES or is_replaced(Log(rows, kill), kill):
            break
        show("the run was over before the replacement computed (a cold start?): once more, and twice as long")
        stage.job, epochs = f"{JOB}-{attempt + 1}", 2 * epochs
    proof = stage.json("ledger", "verify", "--job", stage.job)
    spans = stage.json("trace", "--job", stage.job, "--last", "100000")
    show("the same training, calm, with one worker")
    _, calm = train(stage, epochs, None, show)
    story = tell(Log(rows, kill), kill, spans)
    slots = next(r["event"]["slots"] for r in rows if r["event"]["kind"] == "shards.planned")
    story |= result | {"slots": slots, "calm_weights": calm["weights"], "ledger": proof["ok"]}
    story["checks"] = checks(story, rows, slots)
    story["seconds"] = round(time.monotonic() - began, 1)
    return story


def main() -> int:
    """Play the demo."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument(
        "--kill", type=int, default=1, choices=range(WORKERS), help="place in the ring of the one killed"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument(
        "--keep", type=Path, help="folder for the job's records; by default they are removed at the end"
    )
    args = parser.parse_args()

    home = args.keep or Path(tempfile.mkdtemp(prefix="reknit-demo-"))
    stage = Stage(home.absolute())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        story = play(stage, args.epochs, args.kill, lambda text: print(text, file=sys.stderr, flush=True))
    except Failed as error:
        print(f"demo failed: {error}", file=sys.stderr)
        return 1
    finally:
        stage.end()
        if not args.keep:
            shutil.rmtree(home, ignore_errors=True)
    if args.json:
        print(json.dumps(story, indent=2))
    else:
        narrate(story)
        if args.keep:
            print(f"\n  the records are in {home}: REKNIT_HOME={home} reknit trace --job {stage.job}")
    return 0 if all(story["checks"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
