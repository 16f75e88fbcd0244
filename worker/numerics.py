"""The numeric contract: everything known to change the bits of a gradient besides the data and the weights.

Two workers with equal contracts are *meant* to compute equal bits; whether they do, a canary says (`canary`), and each
step's comparison of the weights.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterable

import torch

_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "DNNL_DEFAULT_FPMATH_MODE",
    "DNNL_MAX_CPU_ISA",
    "MKL_CBWR",
    "MKL_DEBUG_CPU_TYPE",
    "MKL_ENABLE_INSTRUCTIONS",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_DEFAULT_FPMATH_MODE",
    "ONEDNN_MAX_CPU_ISA",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
)
"""Variables by which libraries choose other kernels; they are read when a library is loaded, so what is set counts."""


def contract(parameters: Iterable[torch.Tensor] = ()) -> dict[str, str]:
    """Return this process's contract; two workers of one run must have equal ones.

    The number of *configured* intra-op threads changes bits, the number of cores does not; so do the instruction set
    that kernels are chosen for and the library's version (measured).

    Args:
        parameters: of the tracked modules: where they are, and in which order they lie, chooses kernels too.
    """
    tensors = list(parameters)
    found = {
        "torch": str(torch.__version__),
        "threads": str(torch.get_num_threads()),
        "interop": _interop(),
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "deterministic": str(torch.are_deterministic_algorithms_enabled()),
        "mkldnn": str(torch.backends.mkldnn.is_available() and torch.backends.mkldnn.enabled),
        "mkldnn_fp32": _mkldnn_precision(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "default_dtype": str(torch.get_default_dtype()).removeprefix("torch."),
        "flush_denormal": str(_flushes()),
        "nnpack": str(torch.backends.nnpack.is_available()),
        "einsum": _einsum(),
        "memory_format": _memory_format(tensors),
        "device": "+".join(sorted({_device(t.device) for t in tensors})) or "cpu",
    }
    found |= {f"env.{name}": os.environ[name] for name in _VARIABLES if os.environ.get(name)}
    if any(t.device.type == "cuda" for t in tensors):
        found |= _cuda()
    return found


def _interop() -> str:
    """Threads between operators; by default one a core, and that alone changes no bit."""
    threads = torch.get_num_interop_threads()
    return "cores" if threads in {os.cpu_count(), len(os.sched_getaffinity(0))} else str(threads)


def _mkldnn_precision() -> str:
    mkldnn = torch.backends.mkldnn
    parts = [mkldnn] + [part for name in ("matmul", "conv", "rnn") if (part := getattr(mkldnn, name, None)) is not None]
    said = [str(getattr(part, "fp32_precision", "none")) for part in parts]
    return ",".join(said) if set(said) != {"none"} else "none"


def _flushes() -> bool:
    """True if the processor takes numbers too small to be normal for zero (`torch.set_flush_denormal`)."""
    return bool((torch.full((8,), 1e-310, dtype=torch.float64, device="cpu") * 1.0 == 0.0).all())


def _einsum() -> str:
    # with the package opt_einsum the order of a contraction is another one
    einsum = torch.backends.opt_einsum
    return str(einsum.strategy) if einsum.is_available() and einsum.enabled else "left to right"


def _memory_format(tensors: list[torch.Tensor]) -> str:
    other = [(number, t.stride()) for number, t in enumerate(tensors) if not t.is_contiguous()]
    if not other:
        return "contiguous"
    return f"{len(other)} of {len(tensors)} not contiguous ({hashlib.sha256(repr(other).encode()).hexdigest()[:8]})"


def _device(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return device.type


def _cuda() -> dict[str, str]:
    """What else changes bits on a GPU."""
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    sdp = torch.backends.cuda
    kernels = {
        "flash": sdp.flash_sdp_enabled(),
        "efficient": sdp.mem_efficient_sdp_enabled(),
        "math": sdp.math_sdp_enabled(),
    }
    return {
        "cuda": str(torch.version.cuda),
        "cudnn": f"{cudnn.version()} {'on' if cudnn.enabled else 'off'}",
        "cudnn_benchmark": str(cudnn.benchmark),
        "cudnn_deterministic": str(cudnn.deterministic),
        "tf32": f"matmul {matmul.allow_tf32}, cudnn {cudnn.allow_tf32}",
        "reduced_precision": f"fp16 {matmul.allow_fp16_reduced_precision_reduction}, "
        f"bf16 {matmul.allow_bf16_reduced_precision_reduction}",
        "attention": "+".join(name for name, on in kernels.items() if on),
    }
