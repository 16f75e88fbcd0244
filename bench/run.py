"""All benchmarks with short settings, one after the other: `make bench`. Prints one JSON document, remarks on stderr.

Each runs as a process of its own, as a person would start it. Exit status 1 if one of them misses its bar. Longer: see
`python bench/<name>.py --help` and docs/benchmarks.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import machine

FOLDER = Path(__file__).resolve().parent
PARTS: dict[str, tuple[str, ...]] = {
    "exact": ("exact.py", "--quick"),
    "kill_worker": ("recovery.py", "--event", "kill-worker", "--count", "6"),
    "kill_node": ("recovery.py", "--event", "kill-node", "--count", "3"),
    "silent_host": ("recovery.py", "--event", "silent-host", "--count", "2"),
    "freeze": ("recovery.py", "--event", "freeze", "--count", "3"),
    "drain": ("recovery.py", "--event", "drain", "--count", "3"),
    "join": ("join.py", "--joins", "3"),
    "membership_sim": ("membership_sim.py", "--quick"),
    "rebuild": ("rebuild.py", "--workers", "2,8", "--rounds", "3"),
    "membership": (
        "membership_events.py",
        *("--kill-worker", "9", "--kill-agent", "6", "--kill-node", "3", "--silence", "1", "--ten", "2"),
    ),
    "heartbeats": ("heartbeats.py", "--workers", "1000", "--events", "10", "--seconds", "10"),
    "allreduce": ("allreduce.py", "--workers", "2,4", "--rounds", "3"),
    "overlap": ("overlap.py", "--workers", "2", "--rounds", "2"),
    "throughput": ("throughput.py", "--quick"),
}
WITHIN = 900.0
"""Seconds that one part may take."""


def play(words: tuple[str, ...]) -> tuple[Any, str]:
    """Run one benchmark; returns its document, None if it printed none, and what is wrong, empty if nothing is."""
    command = [sys.executable, str(FOLDER / words[0]), *words[1:], "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            printed, _ = process.communicate(timeout=WITHIN)
        except subprocess.TimeoutExpired:
            process.terminate()  # politely: it ends what it has started
            return None, f"not done within {WITHIN:g} s"
    try:
        found = json.loads(printed)
    except ValueError:
        return None, f"printed no document, exit status {process.returncode}"
    return found, "misses its bar" if process.returncode else ""


def main() -> int:
    document: dict[str, Any] = {"machine": machine.describe()}
    missed: dict[str, str] = {}
    for name, words in PARTS.items():
        print(f"--- {' '.join(words)}", file=sys.stderr, flush=True)
        document[name], wrong = play(words)
        if wrong:
            missed[name] = wrong
    document["missed"] = missed
    print(json.dumps(document, indent=2))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
