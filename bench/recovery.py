"""How long training stands still when something happens: `python bench/recovery.py --event kill-worker --json`.

Three workers train the same 1.0 M-parameter MLP, batch 64 in all, one thread each; after every optimizer step each of
them notes the time. Something happens to a random one at a random moment, then the world is brought back to full
strength (a worker joins), and the next one is hit 0.5 to 1.5 s after all are at work again, those first that were hit
least. Events:

    kill-worker   SIGKILL of a worker's process
    kill-node     SIGKILL of all processes of a node: launcher, agent, worker; another node is started in its place
    silent-host   the host's port on the bridge goes down: no reset, what is sent vanishes (each node in a network
                  namespace of its own); another node is started in its place
    freeze        SIGSTOP of a worker's process; it wakes when the others have recovered
    drain         a node is asked to leave; another one is started in its place

Per event:

    recover_s    from the signal to the next committed step: until the *last* survivor has completed its first step of a
                 newer world (torchrun, which restarts all: until the *first* new process has completed a step)
    gap_s        longest time without a step of any survivor around the event, less a normal step
    steps_lost   steps completed before that were computed again after it
    pids_kept    the survivors are still the same processes

Other systems take part where they know the event: torchrun (DDP over gloo), and torchft with the settings of its README
and with short time-outs, from an environment of its own (see torchft_venv.py).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import machine
import torchft_venv
from figures import median_and_max
from hosts import NoNetworks, own_network
from job import NotInTime
from offspring import Offspring
from shock import Shock, System, befall, until_whole
from system_reknit import Reknit
from system_torchft import Torchft, TunedTorchft
from system_torchrun import Torchrun


@dataclass(frozen=True)
class Bar:
    """What reknit must reach; seconds. No step may be lost, no survivor replaced, and each event recovered from."""

    median: float | None = None
    worst: float | None = None
    gap: float | None = None
    """Longest gap beyond a normal step, over all events."""

    def __str__(self) -> str:
        parts = [
            f"median recovery {self.median:g} s" if self.median else "",
            f"worst recovery {self.worst:g} s" if self.worst else "",
            f"longest gap {self.gap:g} s beyond a normal step" if self.gap else "",
        ]
        return ", ".join(part for part in parts if part)


BARS = {
    "kill-worker": Bar(median=0.10, worst=0.5),
    "kill-node": Bar(median=0.10, worst=0.5),
    "silent-host": Bar(worst=2.0),
    "freeze": Bar(worst=3.0),
    "drain": Bar(gap=0.050),
}
ANY = tuple(BARS)
SYSTEMS: dict[str, type[Reknit] | type[Torchrun] | type[Torchft]] = {
    "reknit": Reknit,
    "torchrun": Torchrun,
    "torchft": Torchft,
    "torchft-tuned": TunedTorchft,
}
TOGETHER = {"torchft": ("torchft", "torchft-tuned")}
"""Names of systems that are measured with more than one setting."""
FEWER = 10
"""Events of the other systems, by default: each takes seconds to minutes."""


@dataclass(frozen=True)
class Options:
    """What to measure.

    Attributes:
        count, peer_count: events for reknit, and for each other system.
        keep: keep the jobs' folders here.
    """

    event: str
    workers: int = 3
    count: int = 10
    peer_count: int = 10
    seed: int = 0
    keep: Path | None = None


def measure(name: str, options: Options) -> list[Shock]:
    """Let so many events happen, in fresh runs after some, or if one is not recovered from."""
    draw = random.Random(options.seed)
    count = options.count if name == "reknit" else options.peer_count
    shocks: list[Shock] = []
    run = 0
    while len(shocks) < count:
        run += 1
        with Offspring() as offspring, _folder(options.keep, f"{name}-{options.event}-{run}") as folder:
            system = SYSTEMS[name](offspring, folder, options.event, options.workers)
            these: list[Shock] = []
            try:
                system.start()
                until_whole(system, offspring, options.workers, 0.0)
                for shock in _shocks(system, offspring, options.workers, draw, count - len(shocks)):
                    these.append(shock)
                    _say(f"{name}: {shock}")
            except NotInTime as late:
                _say(f"{name}: {late}")
                if not these or these[-1].recover_s is not None:
                    _say(_tail(folder / "printed.log"))
                    if run > count:
                        raise
            shocks += system.stages(these)
            system.stop()
    return shocks


def _shocks(system: System, offspring: Offspring, workers: int, draw: random.Random, count: int) -> Iterator[Shock]:
    hit: Counter[str] = Counter()
    for _ in range(min(count, system.shocks_a_run or count)):
        shock = befall(system, offspring, workers, draw, hit)
        yield shock
        if shock.recover_s is None:
            raise NotInTime(f"no recovery within {system.within:g} s after {shock.victim} was hit")


@contextlib.contextmanager
def _folder(keep: Path | None, name: str) -> Iterator[Path]:
    if keep is not None:
        folder = keep.absolute() / name
        folder.mkdir(parents=True)
        yield folder
        return
    with tempfile.TemporaryDirectory(prefix="bench-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def summary(event: str, shocks: list[Shock]) -> dict[str, Any]:
    """Return a system's figures."""
    found: dict[str, Any] = {
        "recover_s": median_and_max([s.recover_s for s in shocks if s.recover_s is not None]),
        "steps_lost": median_and_max([s.steps_lost for s in shocks if s.steps_lost is not None], 1),
        "pids_kept": all(s.pids_kept for s in shocks),
        "unrecovered": sum(s.recover_s is None for s in shocks),
    }
    if BARS[event].gap is not None:
        found["gap_s"] = median_and_max([s.gap_s for s in shocks if s.gap_s is not None])
        found["calm_gap_s"] = median_and_max([s.calm_gap_s for s in shocks if s.calm_gap_s is not None])
    return found


def misses(event: str, figures: dict[str, Any]) -> list[str]:
    """Say which parts of its bar reknit misses."""
    bar, took = BARS[event], figures["recover_s"]
    held = [
        ("median recovery", bar.median, took["median"]),
        ("worst recovery", bar.worst, took["max"]),
        ("longest gap", bar.gap, figures.get("gap_s", took)["max"]),
    ]
    said = [f"{what} {is_} s, bar {at} s" for what, at, is_ in held if at is not None and (is_ is None or is_ > at)]
    if figures["unrecovered"]:
        said.append(f"{figures['unrecovered']} events without recovery")
    if figures["steps_lost"]["max"] is None:
        said.append("not known whether steps were lost")
    elif figures["steps_lost"]["max"]:
        said.append(f"{figures['steps_lost']['max']:g} steps lost")
    if not figures["pids_kept"]:
        said.append("survivors were not the same processes afterwards")
    return said


def hindrance(name: str, options: Options, python: Callable[[], Path]) -> str:
    """Say why a system cannot be measured, empty if it can."""
    system = SYSTEMS[name]
    if issubclass(system, Reknit):
        return ""
    if options.event not in system.events:
        return f"knows no {options.event}, or it is not measured here"
    if issubclass(system, Torchft):
        try:
            system.python = python()
        except torchft_venv.NotInstalled as error:
            return str(error)
    return ""


def measured(systems: list[str], options: Options, python: Callable[[], Path] = torchft_venv.python) -> dict[str, Any]:
    """Measure the systems one after the other and return the document that is printed."""
    document: dict[str, Any] = {}
    details: dict[str, Any] = {"event": options.event, "workers": options.workers, "seed": options.seed}
    details["machine"] = machine.describe()
    for name in systems:
        if why := hindrance(name, options, python):
            document[name] = {"skipped": why}
            _say(f"{name}: skipped: {why}")
            continue
        shocks = measure(name, options)
        document[name] = summary(options.event, shocks)
        details[name] = [asdict(shock) for shock in shocks]
        if not issubclass(system := SYSTEMS[name], Reknit):
            document[name]["settings"] = system.settings
    details["load_1m_at_end"] = machine.load()
    document["details"] = details
    if "reknit" in systems:
        document["bar"] = str(BARS[options.event])
        document["misses"] = misses(options.event, document["reknit"])
    return document


def main() -> int:
    bars = "; ".join(f"{event}: {bar}" for event, bar in BARS.items())
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").splitlines()[0],
        epilog=f"Exit status 1 if reknit misses its bar. Bars: {bars}; always: no step lost, the survivors' processes "
        "kept. They are meant for at least 50 events on a machine that does nothing else.",
    )
    parser.add_argument("--systems", default="reknit", help=f"which, separated by commas: {', '.join(SYSTEMS)}")
    parser.add_argument("--event", choices=ANY, default="kill-worker")
    parser.add_argument("--count", type=int, default=10, help="events for reknit")
    parser.add_argument(
        "--peer-count", type=int, help=f"events for each other system; default: as many, at most {FEWER}"
    )
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0, help="of victims and delays")
    parser.add_argument("--torchft-python", type=Path, metavar="PATH", help="a Python that has torchft")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the jobs' folders (REKNIT_HOME of each) here")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    args = parser.parse_args()
    systems = [one for name in args.systems.split(",") for one in TOGETHER.get(name, (name,))]
    if unknown := set(systems) - set(SYSTEMS):
        parser.error(f"there is no system {', '.join(unknown)}; known: {', '.join(SYSTEMS)}")
    if args.event == "silent-host":
        try:
            own_network()
        except NoNetworks as error:
            parser.exit(1, f"no network namespaces here: {error}\n")
    peer_count = args.peer_count if args.peer_count is not None else min(args.count, FEWER)
    options = Options(args.event, args.workers, args.count, peer_count, args.seed, args.keep)
    document = measured(systems, options, lambda: torchft_venv.python(args.torchft_python))
    if args.json:
        print(json.dumps(document, indent=2))
    else:
        for name in systems:
            print(name, json.dumps(document[name]))
    for miss in document.get("misses", []):
        _say(f"missed: {miss}")
    return 1 if document.get("misses") else 0


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _tail(file: Path) -> str:
    return file.read_text(errors="replace")[-2000:] if file.exists() else ""


if __name__ == "__main__":
    sys.exit(main())
