"""A checkpoint holds only bits that the workers have agreed on: it is written after the comparison, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from reknit.core.events import CheckpointFailed, CheckpointWritten, Event, Range
from reknit.worker.digest import OptimizerDigest, WeightsDigest
from reknit.worker.exchange import Exchange
from reknit.worker.ring.control import Settled
from reknit.worker.ring.pieces import Section, Shape
from reknit.worker.ring.resend import Committed
from reknit.worker.saving import Saving
from reknit.worker.tracked import Tracked
from support.rings import wait_until

OWNERS = (Range(worker="w", first=0, end=2), Range(worker="v", first=2, end=4))


class Bench:
    """A model, its optimizer after one step, and what saves them."""

    def __init__(self, folder: Path, *, verify: bool = True) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.BatchNorm1d(7))
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.randn(4, 5)).square().sum().backward()
        self.optimizer.step()
        self.told: list[Event] = []
        tracked = Tracked(model=self.model, optimizer=self.optimizer)
        names = [name for name, _ in tracked.buffers()]
        self.weights = WeightsDigest(tracked.parameters(), names, lambda: [t for _, t in tracked.buffers()])
        self.optimizers = OptimizerDigest(tracked)
        self.agreed = (self.weights.take(), self.optimizers.take())
        shared = Exchange("w", 1, Shape((Section("f4", 0, 8),)), lambda _step: 4, 10)
        digests = (self.weights, self.optimizers) if verify else None
        self.saving = Saving(
            "w", tracked, shared, job="j", directory=str(folder), post=self.told.append, digests=digests
        )

    def take(self) -> None:
        """The control piece of step 0 has asked for a checkpoint; step 1 begins, and the state is copied."""
        settled = Settled(owners=OWNERS, checkpoint="c1")
        self.saving.agreed(Committed(0, 1, OWNERS, settled, 77, 0))
        self.saving.begin(1)
        self.saving.wait()

    def failed(self) -> list[CheckpointFailed]:
        return [e for e in self.told if isinstance(e, CheckpointFailed)]

    def written(self) -> list[CheckpointWritten]:
        return [e for e in self.told if isinstance(e, CheckpointWritten)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.saving.close(10.0)


def flip(tensor: torch.Tensor) -> None:
    tensor.detach().numpy().view("uint32").reshape(-1)[3] ^= 1 << 20


def test_nothing_is_written_before_the_step_was_compared(bench: Bench, tmp_path: Path) -> None:
    bench.take()
    assert bench.saving.taken_at == 1
    assert not list(tmp_path.rglob("*.safetensors"))
    assert bench.told == []
    bench.saving.compared(0, 1, 1)  # another step
    bench.saving.compared(1, *bench.agreed)
    wait_until(bench.written, what="it is written")
    assert not bench.failed()


def test_without_comparison_it_is_written_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, verify=False)
    bench.take()
    wait_until(bench.written, what="it is written")
    bench.saving.close(10.0)


def test_what_nobody_told_is_not_compared(bench: Bench) -> None:
    bench.take()
    bench.saving.compared(1, 0, 0)
    wait_until(bench.written, what="it is written")


@pytest.mark.parametrize("what", ["weights", "buffers", "moments"])
def test_a_state_that_was_not_agreed_on_is_never_written(bench: Bench, tmp_path: Path, what: str) -> None:
    held = {
        "weights": bench.model[0].weight,
        "buffers": bench.model[1].running_var,
        "moments": bench.optimizer.state[bench.model[0].weight]["exp_avg_sq"],
    }
    flip(held[what])
    bench.take()
    flip(held[what])  # the live one is right again: it is the copy that counts
    assert (bench.weights.take(), bench.optimizers.take()) == bench.agreed
    bench.saving.compared(1, *bench.agreed)
    wait_until(bench.failed, what="it is given up")
    assert "not what the workers agreed on" in bench.failed()[0].reason
    bench.saving.close(10.0)
    assert not bench.written()
    assert not list(tmp_path.rglob("*.safetensors"))


def test_who_learns_anew_gives_up_what_it_has_copied(bench: Bench) -> None:
    bench.take()
    bench.saving.forget()
    assert [(e.checkpoint, e.step) for e in bench.failed()] == [("c1", 1)]
    bench.saving.compared(1, *bench.agreed)
    bench.saving.close(10.0)
    assert not bench.written()


def test_every_moment_counts(bench: Bench) -> None:
    digests = {bench.optimizers.take()}
    for state in bench.optimizer.state.values():
        for tensor in state.values():
            raw = tensor.numpy().reshape(-1).view("uint8")
            raw[-1] ^= 1
            digests.add(bench.optimizers.take())
            raw[-1] ^= 1
    assert len(digests) == 1 + 3 * len(bench.optimizer.state)
