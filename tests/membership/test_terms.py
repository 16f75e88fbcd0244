"""Terms are compared field by field and the first difference is named."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from reknit.core.events import Terms
from reknit.services.membership.terms import arithmetic, difference, essential

JOB = Terms(
    slots=8,
    micro_batch=4,
    samples=100,
    epochs=2,
    seed=7,
    parameters=("fc.weight float32 32x4", "fc.bias float32 32", "bn.mean float32 32"),
    numerics={"torch": "2.13.0", "threads": "1"},
    canary="a" * 16,
    verify=True,
)

ROWS: list[tuple[dict[str, Any], str]] = [
    ({}, ""),
    ({"slots": 4}, "slots differs: the job has 8, this worker has 4"),
    ({"micro_batch": 5}, "micro_batch differs: the job has 4, this worker has 5"),
    ({"samples": 99}, "samples differs: the job has 100, this worker has 99"),
    ({"epochs": 3}, "epochs differs: the job has 2, this worker has 3"),
    ({"seed": 0}, "seed differs: the job has 7, this worker has 0"),
    ({"transport": "gloo"}, "transport differs: the job has tcp, this worker has gloo"),
    ({"seed": 0, "slots": 1}, "slots differs: the job has 8, this worker has 1"),
    (
        {"parameters": ("fc.weight float32 33x4", *JOB.parameters[1:])},
        "tensor 0 differs: the job has 'fc.weight float32 32x4', this worker has 'fc.weight float32 33x4'",
    ),
    (
        {"parameters": JOB.parameters[:2]},
        "tensor 2 is missing: the job tracks 'bn.mean float32 32', this worker only 2",
    ),
    (
        {"parameters": (*JOB.parameters, "x int64 1")},
        "tensor 3 is one too many: this worker tracks 'x int64 1', the job tracks 3",
    ),
    (
        {"numerics": {"torch": "2.13.0", "threads": "2"}},
        "numerics.threads differs: the job has 1, this worker has 2",
    ),
    ({"numerics": {"torch": "2.13.0"}}, "numerics.threads differs: the job has 1, this worker has nothing"),
    (
        {"numerics": {**JOB.numerics, "isa": "avx2"}},
        "numerics.isa differs: the job has nothing, this worker has avx2",
    ),
    ({"canary": ""}, ""),  # one that did not compute it
    (
        {"canary": "b" * 16},
        f"this machine computes other bits: its canary gave {'b' * 16}, that of the job {'a' * 16}",
    ),
    (
        {"canary": "b", "numerics": {"torch": "2.13.1", "threads": "1"}},
        "numerics.torch differs: the job has 2.13.0, this worker has 2.13.1",
    ),
    ({"verify": False}, "verify_weights differs: the job has it on, this worker off"),
]


@pytest.mark.parametrize(("changes", "said"), ROWS)
def test_the_first_difference_is_named(changes: dict[str, Any], said: str) -> None:
    assert difference(JOB, msgspec.structs.replace(JOB, **changes)) == said


@pytest.mark.parametrize(("changes", "said"), ROWS)
def test_what_only_changes_bits_is_told_from_what_cannot_work(changes: dict[str, Any], said: str) -> None:
    worker = msgspec.structs.replace(JOB, **changes)
    bits = said.startswith(("numerics.", "this machine"))
    assert essential(JOB, worker) == ("" if bits else said)
    assert arithmetic(JOB, worker) == (said if bits else "")
