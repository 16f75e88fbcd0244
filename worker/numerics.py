"""The numeric contract: everything known to change the bits of a gradient besides the data and the weights."""

from __future__ import annotations

import platform

import torch


def contract() -> dict[str, str]:
    """Return this process's contract; two workers of one run must have equal ones.

    The number of *configured* intra-op threads changes bits, the number of cores does not; so do the instruction set
    that kernels are chosen for and the library's version (measured).
    """
    return {
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "mkldnn": str(torch.backends.mkldnn.enabled),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
    }
