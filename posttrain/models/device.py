"""Choose a run's device, number format and attention, in one place.

`check`, `plan` and the stages call the same functions. These depend on the device's capability, the model's family and
its head size.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import Field

from posttrain.errors import ModelError
from posttrain.files import free_memory
from posttrain.measure.record import note
from posttrain.settings.params import Params

AMPERE = (8, 0)
"""The lowest GPU capability with bfloat16 and torch's FlashAttention. torch emulates bfloat16 on older GPUs."""
HEAD_STEP, LARGEST_HEAD = 8, 256
"""Head sizes that the variable-length kernel supports: multiples of the first, up to the second."""
FLOAT32_ONLY = frozenset({"minimax", "xglm", "xlstm"})
"""Families whose code adds float32 tensors to the hidden states, so that bf16 products would fail."""
LARGEST_TILE, TILE_SHARE = 2 * 2**30, 64
"""Most bytes of a tile of the head's logits on a GPU, and the part of the GPU's memory that one may be. Tiles are large
because a GPU reads the head's matrix, and adds to its gradient, once per tile."""
CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
"""An environment variable that cuBLAS reads at its start, and the value that makes its results reproducible."""

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names from glibc's <malloc.h>."""


class DeviceParams(Params):
    """The device and precision of a stage."""

    device: Literal["auto", "cpu", "cuda"] = Field("auto", description="auto: cuda if available, else cpu")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="precision of weights and matrix products; auto: bf16 on a GPU of capability 8.0 or higher, "
        "but fp32 for model families that support only float32. Trained weights also have float32 masters, which "
        "the optimizer updates",
    )
    deterministic: bool = Field(
        True, description="on a GPU, use kernels that give the same bits in every run; a CPU always does"
    )
    cuda_graphs: bool = Field(
        True,
        description="on a CUDA GPU in bf16, decode with CUDA graphs and a paged KV cache (docs/gpu.md)",
    )
    compile_decoding: bool = Field(
        False,
        description="with cuda_graphs, compile a decoding step around attention (takes a minute at the start; results "
        "differ by rounding)",
    )
    threads: int = Field(
        1, ge=1, le=256, description="CPU threads; results are reproducible for a fixed number of threads"
    )


class Runtime:
    """The chosen device and number format, and whether fused gradients may be used."""

    def __init__(self, params: DeviceParams, *, fused: bool = True) -> None:
        """`fused`: losses may write `.grad` and read the head's weight outside a forward pass, which is faster.

        Plain autograd gives the same gradient, even if weights are sharded or wrapped.
        """
        self.fused = fused
        torch.set_num_threads(params.threads)
        name = device_name(params)
        if name == "cuda" and params.deterministic:
            use_deterministic_kernels()
        if name == "cuda":
            grow_segments()
        if name == "cpu":
            keep_freed_memory()
        self.device = torch.device(name)
        self.cuda_graphs, self.compile_decoding = params.cuda_graphs, params.compile_decoding
        self.precision = params.precision
        self.bf16 = in_bf16(params.precision, self.device)
        facts = gpu_facts() if name == "cuda" else {}
        model = facts.get("gpu", name)
        note(device=model, precision="bf16" if self.bf16 else "fp32", threads=params.threads, **facts)

    def bf16_for(self, model: Any) -> bool:
        """Tell whether a model computes in bf16. Raise if the run requires it and the family does not support it."""
        return in_bf16(self.precision, self.device, family_of(model))

    def suit(self, policy: Any) -> Any:
        """Choose the precision that the policy's family supports. Call it before any computation. Return the policy."""
        bf16 = self.bf16_for(policy)
        if self.bf16 and not bf16:
            print(f"{family_of(policy)} only supports float32: precision fp32", flush=True)
            note(precision="fp32")
        self.bf16 = bf16
        return policy


def family_of(model: Any) -> str | None:
    """Return transformers' name of a model's family."""
    family: str | None = getattr(getattr(model, "config", None), "model_type", None)
    return family


def gpu_facts() -> dict[str, str]:
    """Return the facts that determine a GPU's rounding, and so a run's bits: its model, its driver and torch's CUDA."""
    try:
        driver = re.findall(r"Module +([0-9.]+)", Path("/proc/driver/nvidia/version").read_text(encoding="utf-8"))
    except OSError:
        driver = []
    versions = {"driver": (driver or ["unknown"])[0], "cuda": torch.version.cuda or "unknown"}
    return {"gpu": torch.cuda.get_device_name(), **versions}


def capability(device: torch.device) -> tuple[int, int] | None:
    """Return a GPU's compute capability; None for a CPU."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def in_bf16(precision: str, device: torch.device, family: str | None = None) -> bool:
    """Tell whether a model of the family computes in bf16 on the device."""
    if precision == "bf16" and family in FLOAT32_ONLY:
        what = f"{family} models only support float32"
        raise ModelError(what=what, where="device.precision", fix="Use precision: fp32, or a model of another family")
    if precision != "auto":
        return precision == "bf16"
    return (capability(device) or (0, 0)) >= AMPERE and family not in FLOAT32_ONLY


def in_segments(query: torch.Tensor, value: torch.Tensor) -> bool:
    """Tell whether the variable-length kernel supports these heads: 16 bits, equal sizes, a GPU that has it."""
    size, half = query.shape[-1], value.dtype in (torch.bfloat16, torch.float16)
    sizes = size == value.shape[-1] <= LARGEST_HEAD and size % HEAD_STEP == 0
    return query.is_cuda and half and sizes and (capability(query.device) or (0, 0)) >= AMPERE


def gpu_tile_bytes(device: torch.device) -> int:
    """Return the bytes of a tile of the head's logits. Like the rounding, they depend only on the kind of GPU."""
    return int(min(LARGEST_TILE, torch.cuda.get_device_properties(device).total_memory // TILE_SHARE))


def device_name(params: DeviceParams) -> str:
    """Return the chosen device. Raise if it does not exist."""
    name = params.device if params.device != "auto" else "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and not torch.cuda.is_available():
        what = "this machine does not have the device"
        raise ModelError(what=what, where=f"device.device = {name}", fix="Use auto or cpu")
    return name


def keep_freed_memory() -> None:
    """Let glibc keep up to 2 GB of freed memory.

    Otherwise large tensors use new pages, which Linux clears each time.
    """
    with suppress(OSError, AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def grow_segments() -> None:
    """Let torch's memory grow in place, because the sizes of packs and keys vary.

    The environment, which vLLM's server inherits, is not changed. A user's own setting there takes precedence.
    """
    if not any(os.environ.get(name) for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")):
        torch._C._accelerator_setAllocatorSettings("expandable_segments:True")


def use_deterministic_kernels() -> None:
    """Use deterministic kernels from now on.

    torch warns about operations without one, and `repeatable` rejects them.
    """
    os.environ.setdefault(*CUBLAS_WORKSPACE)
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Empty tensors are filled before they are read; torch would fill them a second time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def repeatable() -> Iterator[None]:
    """Use attention's deterministic kernels in a backward pass.

    torch's flag does not select them while it only warns.
    """
    if not torch.is_deterministic_algorithms_warn_only_enabled():
        yield
        return
    torch.use_deterministic_algorithms(mode=True)
    try:
        yield
    except RuntimeError as error:
        if "deterministic" not in str(error):
            raise
        what = f"an operation of the backward pass is not deterministic ({error!s:.200})"
        fix = "Set device.deterministic: false; a resumed run may then differ from an uninterrupted run"
        raise ModelError(what=what, where="device.deterministic", fix=fix) from error
    finally:
        torch.use_deterministic_algorithms(mode=True, warn_only=True)


@contextmanager
def unsorted() -> Iterator[None]:
    """Write to distinct places with one kernel. torch's deterministic kernel would sort the places first."""
    if not torch.are_deterministic_algorithms_enabled():  # torch's switch would import its compiler
        yield
        return
    warns = torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(mode=False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(mode=True, warn_only=warns)


def free_bytes(device: torch.device) -> float:
    """Return the free memory in bytes: of the device, or of the machine within the container's limit."""
    if device.type == "cuda":  # and what torch holds for later use
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    return free_memory()
