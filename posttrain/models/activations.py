"""What training keeps of a forward pass for the backward pass: everything, or the input of each layer alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from torch import Tensor
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint

from posttrain.errors import ModelError

Activations = Literal["keep", "recompute", "offload"]


def set_activations(model: Any, activations: Activations) -> None:
    """Choose what training keeps. The gradient is the same bit for bit: a layer is computed again as it was."""
    layers = checkpointed_layers(model)
    if not layers and activations != "keep":
        what = f"activations = {activations}: the layers of {type(model).__name__} cannot be computed again"
        raise ModelError(what=what, where="params.yaml", fix="Use activations: keep, and lower micro_tokens")
    for layer in layers:  # transformers' own flag, which counts only while the model trains
        layer.gradient_checkpointing = activations != "keep"
        layer._gradient_checkpointing_func = _offload if activations == "offload" else _recompute


def checkpointed_layers(model: Any) -> list[Any]:
    """The layers of which transformers can keep the input alone: a decoder's layers, in most families."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]


def _recompute(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Keep the layer's inputs, and compute the layer again in the backward pass."""
    return checkpoint(layer, *inputs, use_reentrant=False)


def _offload(layer: Callable[..., Any], *inputs: Any) -> Any:
    """The same with the inputs in the host's memory."""
    pinned = any(isinstance(one, Tensor) and one.device.type == "cuda" for one in inputs)
    with save_on_cpu(pin_memory=pinned):
        return _recompute(layer, *inputs)
