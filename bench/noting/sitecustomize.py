"""Notes when a process hears of a world, where `PYTHONPATH` names this folder: Python imports this file by its name.

One line of JSON for each arrival goes to the file that `BENCH_NOTES` names: `pid`, `seq` in the log, `time` (wall). The
process is not changed otherwise, and nothing is imported here that it would not import itself.
"""

import importlib.abc
import importlib.util
import json
import os
import sys
import time

_FOLLOWS = "reknit.core.follow"
_WORLD = ".world.changed"


class _WhenImported(importlib.abc.MetaPathFinder):
    """Lets the module that follows the log be imported as ever, then notes what arrives in it."""

    def find_spec(self, fullname, path, target=None):  # noqa: ARG002
        if fullname != _FOLLOWS:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        run = spec.loader.exec_module

        def run_and_note(module):
            run(module)
            _note_arrivals(module.Follow)

        spec.loader.exec_module = run_and_note
        return spec


def _note_arrivals(follow):
    notes = os.environ["BENCH_NOTES"]
    taken = follow._on_live  # noqa: SLF001 - where messages come in; nothing outside tells of it

    def noted(self, message):
        if message.subject.endswith(_WORLD):
            at = time.time()
            line = {"pid": os.getpid(), "seq": int(message.headers["Nats-Sequence"]), "time": at}
            file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # a fork has no file of its parent's
            os.write(file, (json.dumps(line) + "\n").encode())
            os.close(file)
        taken(self, message)

    follow._on_live = noted  # noqa: SLF001


if os.environ.get("BENCH_NOTES"):
    sys.meta_path.insert(0, _WhenImported())
