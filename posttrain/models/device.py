"""Which device and number format to use, decided in one place."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from pydantic import Field

from posttrain.errors import ModelError
from posttrain.params import Params


class DeviceParams(Params):
    """Where a stage computes, and how."""

    device: Literal["auto", "cpu", "cuda", "mps"] = Field("auto", description="auto: cuda, else mps, else cpu")
    precision: Literal["auto", "fp32", "bf16"] = Field(
        "auto", description="auto: bf16 where the device is built for it"
    )
    threads: int = Field(1, ge=1, le=256, description="CPU threads; results are repeatable per number of threads")


class Device:
    """The chosen device, with the context in which forward passes run."""

    def __init__(self, params: DeviceParams) -> None:
        torch.set_num_threads(params.threads)
        name = params.device if params.device != "auto" else _best()
        if name == "cuda" and not torch.cuda.is_available():
            raise ModelError(what="no CUDA device here", where="device = cuda", mend="Use device auto or cpu")
        self.torch = torch.device(name)
        bf16 = name == "cuda" and torch.cuda.is_bf16_supported()
        self.bf16 = params.precision == "bf16" or (params.precision == "auto" and bf16)

    def autocast(self) -> AbstractContextManager[object]:
        """bf16 matrix products with float32 weights, or nothing."""
        return torch.autocast(self.torch.type, torch.bfloat16) if self.bf16 else nullcontext()


def _best() -> str:
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
