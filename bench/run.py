"""All benchmarks with short settings: `make bench`. One JSON document on stdout, remarks on stderr.

Exit status 1 if one of them misses a limit. Each can be run alone, longer: see `python bench/<name>.py --help`.
"""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from typing import Any

import exact
import machine
import rebuilds
import recovery
import throughput

Part = Callable[[], tuple[dict[str, Any], list[str]]]


def _exact() -> tuple[dict[str, Any], list[str]]:
    found = exact.measured(quick=True)
    return found, exact.misses(found)


def _recovery() -> tuple[dict[str, Any], list[str]]:
    ours = recovery.measured(["reknit"], recovery.Options("kill-worker", workers=3, kills=5, seed=0, keep=None))
    theirs = recovery.measured(["torchrun"], recovery.Options("kill-worker", workers=3, kills=2, seed=0, keep=None))
    return ours | theirs | {"details": theirs["details"] | ours["details"]}, ours["misses"]


def _node_recovery() -> tuple[dict[str, Any], list[str]]:
    options = recovery.Options("kill-node", workers=3, kills=3, seed=0, keep=None)
    found = recovery.measured(["reknit"], options)
    return found, found["misses"]


def _throughput() -> tuple[dict[str, Any], list[str]]:
    found = throughput.measured([2], "mlp", count=3, seconds=5.0, twice=False)
    return found, throughput.misses(found)


def _rebuilds() -> tuple[dict[str, Any], list[str]]:
    found = rebuilds.measured(40, "scale")
    return found, rebuilds.leaks(found)


PARTS: dict[str, Part] = {
    "exact": _exact,
    "recovery": _recovery,
    "node_recovery": _node_recovery,
    "throughput": _throughput,
    "rebuilds": _rebuilds,
}


def main() -> int:
    document: dict[str, Any] = {"machine": machine.describe()}
    missed: dict[str, list[str]] = {}
    for name, part in PARTS.items():
        print(f"--- {name}", file=sys.stderr, flush=True)
        try:
            document[name], missed[name] = part()
        except Exception as error:  # noqa: BLE001  # one benchmark that cannot run must not hide what the others found
            traceback.print_exc()
            missed[name] = [f"{type(error).__name__}: {error}"]
    document["missed"] = {name: said for name, said in missed.items() if said}
    print(json.dumps(document, indent=2))
    return 1 if document["missed"] else 0


if __name__ == "__main__":
    sys.exit(main())
