"""What a run computes with, in one place: device and number format."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, Literal

import psutil
import torch
from pydantic import Field

from posttrain.errors import ModelError
from posttrain.measure.record import note
from posttrain.params import Params
from posttrain.renames import DEVICE, keys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Names of glibc's <malloc.h>."""


class DeviceParams(Params):
    """Where a stage computes, and how."""

    renamed: ClassVar[Mapping[str, str]] = keys(DEVICE)
    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: cuda, else mps, else cpu")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto",
        description="of weights and products; auto: bf16 where the device is built for it. Trained weights also have "
        "float32 masters, which the optimizer updates",
    )
    deterministic: bool = Field(
        True, description="on a GPU, use kernels that give the same bits every time; a CPU always does"
    )
    cuda_graphs: bool = Field(False, description="on a CUDA GPU, run decoding steps as CUDA graphs")
    threads: int = Field(1, ge=1, le=256, description="CPU threads; results are repeatable per number of threads")


class Runtime:
    """The chosen device and number format, and whether fused gradients may be used."""

    def __init__(self, params: DeviceParams, *, fused: bool = True) -> None:
        """`fused`: losses may write `.grad` and read the head's weight outside a forward pass, which is faster.

        Plain autograd gives the same gradient, also where weights are sharded or wrapped.
        """
        self.fused = fused
        torch.set_num_threads(params.threads)
        name = device_name(params)
        if name == "cuda" and params.deterministic:
            use_deterministic_kernels()
        if name == "cpu":
            keep_freed_memory()
        self.device = torch.device(name)
        bf16 = name == "cuda" and torch.cuda.is_bf16_supported()
        self.cuda_graphs = params.cuda_graphs
        self.bf16 = params.precision == "bf16" or (params.precision == "auto" and bf16)
        model = torch.cuda.get_device_name() if name == "cuda" else name
        note(device=model, precision="bf16" if self.bf16 else "fp32", threads=params.threads)


def device_name(params: DeviceParams) -> str:
    """The chosen device, which must be there."""
    name = params.device if params.device != "auto" else _best()
    if not {"cuda": torch.cuda, "mps": torch.backends.mps, "cpu": torch.cpu}[name].is_available():
        what = "this machine has no such device"
        raise ModelError(what=what, where=f"device.device = {name}", fix="Use auto or cpu")
    return name


def keep_freed_memory() -> None:
    """Let glibc keep up to 2 GB of freed memory: large tensors are else new pages, which Linux clears each time."""
    with suppress(OSError, AttributeError):  # another libc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, 2**30)
        mallopt(M_TRIM_THRESHOLD, 2**31 - 1)


def use_deterministic_kernels() -> None:
    """Use deterministic kernels from now on; torch warns where it has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it starts
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Empty tensors are filled before they are read; torch would fill them a second time.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


def free_bytes(device: torch.device) -> float:
    """Free memory in bytes: the device's, or the machine's within the container's limit."""
    if device.type == "cuda":  # and what torch holds for later use
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    free = float(psutil.virtual_memory().available)
    with suppress(OSError, ValueError, KeyError):  # "max" where there is no limit
        group = Path("/sys/fs/cgroup")
        limit, used = (int((group / f"memory.{name}").read_text()) for name in ("max", "current"))
        parts = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
        free = min(free, float(limit - used + int(parts["inactive_file"])))  # of it, cache that can be freed
    return free


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
