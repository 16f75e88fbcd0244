"""`ring.evaluate` on real workers: one result for all, whoever measured what and whatever died meanwhile."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import reknit
from reknit.core.broker import Broker
from reknit.core.context import Endpoint
from reknit.core.errors import UsageError
from reknit.core.events import (
    CheckpointRestored,
    EvaluationDiffers,
    EvaluationFinished,
    EvaluationPart,
    WorkerFailed,
    WorkerFinished,
)
from support.crews import Crew, alone, until
from support.examined import DATA, MICRO, SAMPLES

SCRIPT = "support.examined:train"
BATCHES = -(-SAMPLES // MICRO)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a world of one finds."""
    return alone(SCRIPT, tmp_path_factory.mktemp("alone"))


def measured(crew: Crew, worker: str | None = None) -> list[int]:
    """Numbers of the micro-batches that were measured, in log order."""
    return [
        number
        for part in crew.of(EvaluationPart)
        if worker in (None, part.worker)
        for scores in part.scores
        for number in scores.numbers
    ]


# ------------------------------------------------------------------------------------------------------- a world of one


def ready(ring: reknit.Ring, model: nn.Module | None = None, **more: Any) -> Any:
    ring.track(model=model or nn.Linear(1, 1))
    return ring.steps(DATA, micro_batch=8, slots=2, **more)


def test_means_sums_and_counts() -> None:
    with reknit.join() as ring:
        for step in ready(ring):
            for _ in step:
                pass
            found = ring.evaluate(
                DATA,
                lambda batch: {
                    "mean": batch[0].mean(),
                    "pair": (batch[0].sum(), len(batch[0])),
                    "masked": (float(batch[0][batch[0] > 20].sum()), int((batch[0] > 20).sum())),
                    "never": (0.0, 0),
                },
                micro_batch=MICRO,
            )
    values = DATA.tensors[0].double().flatten()
    assert found["mean"] == found["pair"] == pytest.approx(float(values.mean()))
    assert found["masked"] == pytest.approx(float(values[values > 20].mean()))
    assert math.isnan(found["never"])


def test_a_metric_of_some_micro_batches_is_averaged_over_those() -> None:
    def measure(batch: Any) -> dict[str, float]:
        return {"all": 1.0} | ({"some": float(len(batch[0]))} if float(batch[0][0]) < 2 * MICRO else {})

    with reknit.join() as ring:
        next(ready(ring))
        assert ring.evaluate(DATA, measure, micro_batch=MICRO) == {"all": 1.0, "some": float(MICRO)}


class Noisy(nn.Module):
    """Has buffers and random numbers that forward changes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.weight = nn.Parameter(torch.ones(1))
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.again = self.norm  # a module in two places

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls = self.calls + 1
        return nn.functional.dropout(self.norm(x) * self.weight, 0.5) + float(np.random.rand()) + random.random()


def test_nothing_is_changed_by_an_evaluation() -> None:
    """Buffers (also assigned anew), random states, gradients; and no graph is kept."""
    model = Noisy()
    with reknit.join() as ring:
        for step in ready(ring, model):
            for (x,) in step:
                step.backward(model(x).mean())
            kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
            objects = {name: id(buffer) for name, buffer in model.named_buffers()}
            grads = [p.grad.clone() for p in model.parameters() if p.grad is not None]
            states = torch.get_rng_state(), np.random.get_state(), random.getstate()
            seen = []

            def measure(batch: Any, seen: list[bool] = seen) -> dict[str, Any]:
                out = model(batch[0]).mean()
                seen.append(out.requires_grad)
                return {"out": out}

            first = ring.evaluate(DATA, measure, micro_batch=MICRO, name="a")
            assert seen == [False] * BATCHES
            assert all(torch.equal(kept[n], b) for n, b in model.named_buffers())
            assert objects == {n: id(b) for n, b in model.named_buffers()}
            assert all(torch.equal(a, p.grad) for a, p in zip(grads, model.parameters(), strict=False))
            assert torch.equal(states[0], torch.get_rng_state())
            assert str(states[1]) == str(np.random.get_state())
            assert states[2] == random.getstate()
            assert ring.evaluate(DATA, measure, micro_batch=MICRO, name="b") != first
            break


def test_where_it_may_be_called_and_with_what() -> None:
    measure = lambda batch: {"one": 1.0}  # noqa: E731
    with reknit.join() as ring:
        with pytest.raises(UsageError, match=r"before ring\.steps"):
            ring.evaluate(DATA, measure, micro_batch=2)
        run = ready(ring)
        with pytest.raises(UsageError, match="before the first step"):
            ring.evaluate(DATA, measure, micro_batch=2)
        step = next(run)
        assert ring.evaluate(DATA, measure, micro_batch=2) == {"one": 1.0}
        for _ in step:
            with pytest.raises(UsageError, match="inside the loop over the micro-batches of step 0"):
                ring.evaluate(DATA, measure, micro_batch=2)
        with pytest.raises(UsageError, match="micro_batch is 0"):
            ring.evaluate(DATA, measure, micro_batch=0)
        with pytest.raises(UsageError, match=r"given to ring\.evaluate is empty"):
            ring.evaluate([], measure, micro_batch=2)
        for wrong, why in (
            (lambda _: {"acc": torch.ones(2)}, r"'acc' is a tensor of shape \(2,\)"),
            (lambda _: {"acc": (1.0, 2.0, 3.0)}, "'acc' is a tuple of 3"),
            (lambda _: {"acc": ("a", 1)}, "'acc' is a str"),
            (lambda _: 0.5, "returned a float, not a dict"),
            (lambda _: {3: 0.5}, "name 3"),
        ):
            with pytest.raises(UsageError, match=why):
                ring.evaluate(DATA, wrong, micro_batch=2)


# ---------------------------------------------------------------------------------------------------------------- crews


@pytest.mark.parametrize("count", [1, 2, 3])
def test_the_same_bits_for_any_number_of_workers(count: int, right: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    names = [f"w{i}" for i in range(count)]
    with Crew(endpoint, tmp_path, SCRIPT) as crew:
        crew.start(*names)
        crew.world(*names)
        results = crew.finish(*names)
        names_told = {"", "middle", "tiny\nüß/", "end"}
        until(lambda: {t.name for t in crew.of(EvaluationFinished)} == names_told, crew.story)
        told = crew.of(EvaluationFinished)
        assert set(measured(crew)) == set(range(BATCHES))
    assert all(result == right for result in results.values())
    assert len(told) == len({t.evaluation for t in told}), "said once, whoever says it"
    assert not crew.of(EvaluationDiffers)


def test_a_worker_killed_in_the_middle(right: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    with Crew(endpoint, tmp_path, SCRIPT) as crew:
        crew.start("w0", "w1", "w2")
        crew.want("w1", place="middle")
        crew.world("w0", "w1", "w2")
        crew.held("w1", place="middle")
        crew.kill("w1")
        crew.world("w0", "w2")
        results = crew.finish("w0", "w2")
    assert all(result == right for result in results.values())


def test_nobody_waits_for_a_worker_that_hangs_in_its_last_micro_batch(
    right: Any, endpoint: Endpoint, tmp_path: Path
) -> None:
    """The others measure what it does not, and go on; in the next step they wait, and membership finds it there."""
    with Crew(endpoint, tmp_path, SCRIPT) as crew:
        crew.start("w0", "w1")
        crew.want("w1", place="middle")
        crew.world("w0", "w1")
        crew.held("w1", place="middle")
        until(lambda: (crew.pulses["w0"].phase, crew.pulses["w0"].step) == ("reduce", 4), crew.story)
        until(lambda: (crew.pulses["w1"].phase, crew.pulses["w1"].step) == ("evaluate", 3), crew.story)
        crew.go("w1", place="middle")
        results = crew.finish("w0", "w1")
    assert all(result == right for result in results.values())


def test_a_broker_that_is_away_in_the_middle(right: Any, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    endpoint = broker.start()
    try:
        with Crew(endpoint, tmp_path, SCRIPT) as crew:
            crew.start("w0", "w1")
            crew.want("w0", "w1", place="middle")
            crew.world("w0", "w1")
            crew.held("w0", "w1", place="middle")
            broker.kill()
            crew.go("w0", "w1", place="middle")
            until(lambda: not crew.bus.connected, crew.story)
            broker.start()
            results = crew.finish("w0", "w1")
    finally:
        broker.stop()
    assert all(result == right for result in results.values())


def test_a_broker_that_is_away_when_the_first_evaluation_begins(right: Any, tmp_path: Path) -> None:
    broker = Broker(tmp_path / "store")
    endpoint = broker.start()
    try:
        with Crew(endpoint, tmp_path, SCRIPT) as crew:
            crew.start("w0", hold={"w0": (0, 0)})
            crew.world("w0")
            crew.held("w0")
            broker.kill()
            crew.go("w0")
            until(lambda: not crew.bus.connected, crew.story)
            broker.start()
            assert crew.finish("w0")["w0"] == right
    finally:
        broker.stop()


def test_a_joiner_finds_what_was_measured_and_measures_nothing(right: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    with Crew(endpoint, tmp_path, SCRIPT) as crew:
        crew.start("w0")
        crew.want("w0", place="after middle")
        crew.world("w0")
        crew.held("w0", place="after middle")
        crew.start("w1", hold={"w1": (99, 0)})
        before = len(crew.of(EvaluationPart))
        assert before
        crew.world("w0", "w1")
        crew.go("w0", place="after middle")
        results = crew.finish("w0", "w1")
        first = crew.of(EvaluationPart)[:before]
    assert results["w0"] == right
    found = results["w1"]
    assert found == {k: v for k, v in right.items() if k in found}
    assert {part.worker for part in first} == {"w0"}


def test_a_spare_and_a_candidate_have_the_same_result(right: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    with Crew(endpoint, tmp_path, SCRIPT) as crew:
        crew.start("w0", "w1")
        crew.world("w0", "w1", w1="spare")
        results = crew.finish("w0", "w1")
        assert set(measured(crew, "w1")), "a spare has its share"
    assert all(result == right for result in results.values())


def test_one_that_hangs_after_the_last_step_ends_itself_once_the_others_have_finished(
    right: Any, endpoint: Endpoint, tmp_path: Path
) -> None:
    """Nobody waits for it in the ring any more, and the run would never end."""
    with Crew(endpoint, tmp_path, SCRIPT, stuck_after=1.0) as crew:
        crew.start("w0", "w1")
        crew.want("w1", place="end")
        crew.world("w0", "w1")
        crew.held("w1", place="end")
        assert crew.finish("w0") == {"w0": right}
        until(lambda: crew.processes["w1"].exitcode is not None, crew.story)
        assert crew.processes["w1"].exitcode == 1
        until(lambda: crew.of(WorkerFailed), crew.story)
        (failed,) = crew.of(WorkerFailed)
    assert (failed.worker, failed.step) == ("w1", 8)
    assert "for more than 1 s, the others have measured it and finished" in failed.error
    assert "gate.hold" in failed.traceback, "it says where it hangs"


def test_after_an_early_stop(endpoint: Endpoint, tmp_path: Path) -> None:
    """The script breaks out of the loop, all at the same step, and evaluates then; the ring falls apart meanwhile."""
    expected = alone(SCRIPT, tmp_path, stop=True)
    assert set(expected) == {"before 2", "middle", "again", "end"}
    with Crew(endpoint, tmp_path, SCRIPT, stop=True) as crew:
        crew.start("w0", "w1", "w2")
        crew.world("w0", "w1", "w2")
        results = crew.finish("w0", "w1", "w2")
    assert all(result == expected for result in results.values())


def test_a_second_measurement_that_differs_is_reported_and_not_used(endpoint: Endpoint, tmp_path: Path) -> None:
    with Crew(endpoint, tmp_path, SCRIPT, lies="w1") as crew:
        crew.start("w0", "w1")
        crew.want("w1", place="middle")  # so that w0 measures what w1 then measures as well, and wrongly
        crew.world("w0", "w1")
        crew.held("w1", place="middle")
        until(lambda: (crew.pulses["w0"].phase, crew.pulses["w0"].step) == ("reduce", 4), crew.story)
        crew.go("w1", place="middle")
        until(lambda: crew.of(EvaluationDiffers), crew.story)
        told = crew.of(EvaluationDiffers)[0]
    assert (told.worker, told.first) == ("w1", "w0")
    assert told.detail == "lie is 0.0 / 4.0 there, 4.0 / 4.0 here"
    assert told.evaluation.startswith("after/4/middle/0/")


def test_what_was_measured_on_a_lost_line_does_not_count(right: Any, endpoint: Endpoint, tmp_path: Path) -> None:
    """All workers die; the run begins again from the start: the same places come again, and are measured anew."""
    with Crew(endpoint, tmp_path, SCRIPT) as crew:
        crew.start("w0")
        crew.want("w0", place="after middle")
        crew.world("w0")
        crew.held("w0", place="after middle")
        crew.kill("w0")
        crew.pause()
        before = measured(crew)
        (tmp_path / crew.job / "after middle.w0.wanted").unlink()
        crew.start("w0")
        crew.world("w0")
        assert crew.finish("w0")["w0"] == right
        assert crew.of(CheckpointRestored)
        again = measured(crew)[len(before) :]
    assert set(before) <= set(again)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(8))
def test_a_storm_of_kills_joins_and_outages(seed: int, right: Any, tmp_path: Path) -> None:
    """Random histories while evaluations are under way; the seed says all but the moments."""
    rng = random.Random(seed)
    broker = Broker(tmp_path / "store")
    endpoint = broker.start()
    try:
        with Crew(endpoint, tmp_path, SCRIPT, slow=0.08) as crew:
            here = ["w0", "w1", "w2"][: rng.choice([2, 3])]
            crew.start(*here)
            crew.world(*here)
            for number in range(3):
                parts = len(crew.of(EvaluationPart)) + rng.randrange(8)
                until(lambda parts=parts: len(crew.of(EvaluationPart)) > parts or crew.of(WorkerFinished), crew.story)
                event = rng.choice(["kill", "join", "outage"])
                if crew.of(WorkerFinished):
                    break
                if event == "kill" and len(here) > 1:
                    victim = here.pop(rng.randrange(len(here)))
                    crew.kill(victim)
                    crew.world(*here)
                elif event == "join":
                    crew.start(f"j{number}")
                    if not crew.of(WorkerFinished):
                        crew.world(*here, f"j{number}")
                        until(
                            lambda n=f"j{number}": crew.pulses[n].current or crew.of(WorkerFinished),
                            crew.story,
                        )
                        if crew.pulses[f"j{number}"].current:
                            here.append(f"j{number}")
                elif event == "outage":
                    broker.kill()
                    broker.start()
            results = crew.finish(*here)
    finally:
        broker.stop()
    for result in results.values():
        assert result == {key: right[key] for key in result}
    assert any(result == right for result in results.values()) or all(name.startswith("j") for name in here)
