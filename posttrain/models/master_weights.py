"""Weights in bf16 for computation, and float32 masters for trained weights.

    m = m - update,  w = round(m)      m: the master, which the optimizer updates;  w: the weight of every product

A single update is usually smaller than the distance between neighbouring bf16 numbers, so w alone would not change.
Gradients of w are summed over passes in float32 (torch's `grad_dtype`). Frozen weights have no master. In float32, a
weight is its own master.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.device import Runtime

MASTER = "master"
"""The attribute of a bf16 weight that holds its master."""


def master_of(weight: Tensor) -> Tensor:
    """Return the tensor that the optimizer updates, and that checkpoints and saved models contain."""
    master: Tensor = getattr(weight, MASTER, weight)
    return master


def keeps_float32(model: Any, name: str, dtype: torch.dtype) -> bool:
    """Tell whether transformers keeps a family's tensor in float32 regardless of the dtype of other tensors."""
    patterns = set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if dtype == torch.float16:
        patterns |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    return any(re.search(pattern.replace("*", ".*"), name) for pattern in patterns)


def compute_in_bf16(model: Any) -> None:
    """Round the float32 weights to bf16 in place. Trained weights keep their old values as masters.

    Buffers and the parts of 4-bit matrices are unchanged.
    """
    packed = {
        part for layer in model.modules() if hasattr(layer, "dense_weight") for part in (layer.weight, layer.scales)
    }
    for name, part in model.named_parameters():
        if part.dtype != torch.float32 or part in packed or keeps_float32(model, name, torch.bfloat16):
            continue
        master = part.data
        part.data = master.to(torch.bfloat16)
        if part.requires_grad:
            setattr(part, MASTER, master)
            part.grad_dtype = torch.float32


def is_trained_in_bf16(model: Any) -> bool:
    """Tell whether weights of the model have masters."""
    return any(hasattr(part, MASTER) for part in model.parameters())


def frozen_on(model: Any, runtime: Runtime) -> Any:
    """Return a frozen model on the runtime's device and in its precision."""
    return placed(model.requires_grad_(requires_grad=False), runtime)


def placed(model: Any, runtime: Runtime) -> Any:
    """Return the model on the runtime's device and in its precision. The device never holds more than the result."""
    if runtime.bf16_for(model):
        compute_in_bf16(model)
    model.to(runtime.device)
    for part in model.parameters():
        if hasattr(part, MASTER):
            setattr(part, MASTER, master_of(part).to(runtime.device))
    return model


@contextmanager
def computing(model: Any, runtime: Runtime) -> Iterator[None]:
    """Yield the model in the runtime's precision. Afterwards its weights are float32 again, including training."""
    data_of = {part: part.data for part in model.parameters()}  # a master is this tensor
    try:
        if runtime.bf16_for(model):
            compute_in_bf16(model)
        yield
    finally:
        for part, data in data_of.items():
            if part.dtype != data.dtype:
                part.grad, part.data = None, data
                vars(part).pop(MASTER, None)


def gradient_of(parameter: Tensor) -> Tensor:
    """Return a trained parameter's `.grad` to add to. Allocate it if it is None."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter, dtype=parameter.grad_dtype)
    return parameter.grad


@contextmanager
def summed_in_float32(*weights: Tensor | None) -> Iterator[None]:
    """Sum gradients of trained weights in float32 within the context, and round them to the weight's dtype at the end.

    Weights with masters keep their sums in float32.
    """
    summed = [part for part in weights if part is not None and part.requires_grad and part.element_size() == 2]
    summed = [part for part in summed if not hasattr(part, MASTER)]
    for part in summed:
        part.grad_dtype = torch.float32
    yield
    for part in summed:
        total, part.grad, part.grad_dtype = part.grad, None, part.dtype
        part.grad = None if total is None else total.to(part.dtype)


def take_gradients(weights: Iterable[nn.Parameter]) -> None:
    """Move the gradients of weights to their masters."""
    for part in weights:
        if hasattr(part, MASTER):
            master_of(part).grad, part.grad = part.grad, None


@torch.no_grad()
def round_masters(weights: Iterable[nn.Parameter]) -> None:
    """Set weights to their rounded masters."""
    mastered: list[Tensor] = [part for part in weights if hasattr(part, MASTER)]
    if mastered:
        torch._foreach_copy_(mastered, [master_of(part) for part in mastered])
