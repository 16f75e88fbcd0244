"""The end of a run, when one leaves while others are still at their last step, and runs that are hardly begun.

More real runs: REKNIT_SHORT_RUNS=100 pytest -m slow tests/breaks/test_end.py
"""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from reknit.core.events import RingBroken
from support.breaks import calm
from support.launchers import Place
from support.rings import PretendWorker, Rings

TOTAL = 4
SHORT = """
import random, sys, time
import torch
from torch.utils.data import TensorDataset
import reknit

data = TensorDataset(torch.randn(80, 4), torch.randn(80, 1))
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
with reknit.join() as ring:
    ring.track(model=model, optimizer=optimizer)
    draw = random.Random(f"{ring.id}/{sys.argv[1]}")
    for step in ring.steps(data, micro_batch=1, slots=4, epochs=1, seed=0):
        for x, y in step:
            step.backward(torch.nn.functional.mse_loss(model(x), y))
        optimizer.step()
        if step.index == 19:
            time.sleep(draw.random())
time.sleep(draw.random())
"""


@pytest.mark.parametrize("seed", [*range(12), *(pytest.param(n, marks=pytest.mark.slow) for n in range(12, 50))])
def test_who_has_finished_goes_at_once_and_nobody_notices(seed: int) -> None:
    """One is late in the last step; each process is gone the moment that its script has left the loop."""
    draw = random.Random(seed)
    rings = Rings()
    names = list("abcd")
    late = draw.choice(names)

    def hold(step: int, _slot: int) -> None:
        if step == TOTAL - 1:
            time.sleep(0.02)  # how late it is; nothing is waited for

    workers = [PretendWorker(n, slots=8, total=TOTAL) for n in names]
    try:
        for worker in workers:
            if worker.name == late:
                worker.hold = hold
            rings.add(worker)
        rings.world(names)
        gone: set[str] = set()
        deadline = time.monotonic() + 30.0
        while len(gone) < len(workers):
            assert time.monotonic() < deadline, "\n".join(w.story() for w in workers)
            for worker in workers:
                assert worker.error is None, worker.error
                if worker.outcome and worker.name not in gone:
                    threading.Thread(target=worker.close).start()
                    gone.add(worker.name)
            time.sleep(0.0005)
        assert {w.outcome for w in workers} == {"done"}
        assert {w.digest for w in workers} == {calm(0, TOTAL)}
        assert not [e for w in workers for e in w.outlet.events if isinstance(e, RingBroken)]
    finally:
        rings.close()


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_short_runs_end_well_each_time(place: Place) -> None:
    """20 steps, four workers, each late at its last step and again after it by up to a second."""
    script = str(place.script("short.py", SHORT))
    for turn in range(int(os.environ.get("REKNIT_SHORT_RUNS", "5"))):
        run = place.call("run", "--job", f"j{turn}", "--nproc-per-node", "4", script, str(turn), within=120.0)
        assert "completed: j" in run.shown
        assert "lost its" not in run.shown
        events = place.json("events", "--job", f"j{turn}", "--area", "ring,worker")
        assert not [e for e in events if e["event"]["kind"] in ("ring.broken", "worker.failed")]
        assert place.json("ledger", "verify", "--job", f"j{turn}")["ok"]
        place.nothing_left()
