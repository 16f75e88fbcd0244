"""The numeric contract and the canary: what they see, and that they leave no trace."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch

from reknit.worker import canary, numerics


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As in a worker."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_the_canary_is_the_same_again_and_in_every_mode() -> None:
    first = canary.sing()
    assert len(first) == 16
    with torch.no_grad():
        assert canary.sing() == first
    with torch.inference_mode():
        assert canary.sing() == first
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert canary.sing() == first
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        assert canary.sing() == first
    finally:
        torch.set_default_dtype(before)
    with torch.device("meta"):
        assert canary.sing() == first


def test_the_canary_leaves_no_trace() -> None:
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    canary.sing()
    assert (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()) == states
    assert torch.is_grad_enabled()


def test_every_kernel_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {canary.sing()}
    for kernel in canary._KERNELS:

        def spoilt(inputs, kernel=kernel):
            values = kernel(inputs)
            last = values[-1].detach().clone().view(-1)
            last.view(torch.int16 if last.element_size() == 2 else torch.int32)[0] ^= 1
            return [*values[:-1], last]

        kernels = tuple(spoilt if k is kernel else k for k in canary._KERNELS)
        monkeypatch.setattr(canary, "_KERNELS", kernels)
        digests.add(canary.sing())
        monkeypatch.undo()
    assert len(digests) == 1 + len(canary._KERNELS)


def test_another_instruction_set_sings_another_song_and_says_so() -> None:
    code = (
        "import json, torch; torch.set_num_threads(1)\n"
        "from reknit.worker import canary, numerics\n"
        "print(json.dumps([canary.sing(), numerics.contract()]))"
    )
    env = os.environ | {"ATEN_CPU_CAPABILITY": "default", "ONEDNN_MAX_CPU_ISA": "SSE41"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, check=True, capture_output=True, text=True, timeout=300
    )
    there, theirs = json.loads(done.stdout)
    mine = numerics.contract()
    assert mine["cpu_capability"] != "DEFAULT", "this machine has nothing to leave out"
    assert canary.sing() != there
    different = {name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name)}
    assert different == {"cpu_capability", "env.ATEN_CPU_CAPABILITY", "env.ONEDNN_MAX_CPU_ISA"}


def test_the_contract_names_what_changes_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch.nn.Conv2d(3, 4, 3)
    plain = numerics.contract(model.parameters())
    assert plain["torch"] == torch.__version__
    assert plain["device"] == "cpu"

    def changed() -> set[str]:
        now = numerics.contract(model.parameters())
        return {name for name in now.keys() | plain.keys() if now.get(name) != plain.get(name)}

    assert changed() == set()
    torch.use_deterministic_algorithms(mode=True)
    try:
        assert changed() == {"deterministic"}
    finally:
        torch.use_deterministic_algorithms(mode=False)
    torch._C._set_mkldnn_enabled(False)
    try:
        assert changed() == {"mkldnn"}
    finally:
        torch._C._set_mkldnn_enabled(True)
    if torch.set_flush_denormal(True):
        try:
            assert changed() == {"flush_denormal"}
        finally:
            torch.set_flush_denormal(False)
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    assert changed() == {"env.MKL_CBWR"}
    monkeypatch.undo()
    model.to(memory_format=torch.channels_last)
    assert changed() == {"memory_format"}
    model.to(memory_format=torch.contiguous_format)
    assert changed() == set()
    torch.set_float32_matmul_precision("medium")  # last: torch keeps more of it than it gives back
    try:
        assert "matmul_precision" in changed()
    finally:
        torch.set_float32_matmul_precision("highest")
