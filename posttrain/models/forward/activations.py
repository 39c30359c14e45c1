"""Choose the activations that training keeps from a forward pass for the backward pass.

Everything, the results of matrix products and attention (the rest of a layer is cheap to compute again), or only the
layers' inputs.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor
from torch.autograd.graph import save_on_cpu, saved_tensors_hooks
from torch.utils.checkpoint import CheckpointPolicy, checkpoint
from torch.utils.checkpoint import create_selective_checkpoint_contexts as selective_contexts

from posttrain.errors import ModelError
from posttrain.settings.host import HOST

Activations = Literal["keep", "selective", "recompute", "offload"]

PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})
ATTENTION = frozenset({
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention", "_varlen_attn",
})  # fmt: skip
"""Operators whose results `selective` keeps, with the products."""
SELECTING: list[bool] = []
"""Not empty in a layer's pass of which torch keeps the products: nothing may change them in place."""
SMALL = 128
"""Terms of a sum below which a product is computed again."""


def set_activations(model: Any, activations: Activations) -> None:
    """Choose the activations that training keeps.

    Layers are recomputed exactly, so the gradient stays bit-identical.
    """
    layers = checkpointed_layers(model)
    if not layers and activations != "keep":
        what = f"activations = {activations}: the layers of {type(model).__name__} cannot be computed again"
        raise ModelError(what=what, where=HOST.settings_file, fix="Use activations: keep, and lower micro_tokens")
    for layer in layers:  # transformers' own flag, which counts only while the model trains
        layer.gradient_checkpointing = activations != "keep"
        layer._gradient_checkpointing_func = WAYS.get(activations, _recompute)


def checkpointed_layers(model: Any) -> list[Any]:
    """Return the layers for which transformers can keep only the input: in most families, the decoder's layers."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    return [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]


def _recompute(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Keep the layer's inputs, and recompute the layer in the backward pass."""
    return checkpoint(layer, *inputs, use_reentrant=False)


def selective(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Keep the results of products and attention, and recompute the rest of the layer in the backward pass.

    A layer with a backward pass of its own keeps no more by itself (`keeps_products`).
    """
    if isinstance(layer, partial) and layer.args:  # transformers': the module is its first argument
        keeps = getattr(layer.args[0], "keeps_products", None)
        if keeps is not None and keeps(*inputs, **layer.keywords):
            return layer(*inputs)

    def run(*inputs: Any) -> Any:
        SELECTING.append(True)
        try:
            return layer(*inputs)
        finally:
            SELECTING.pop()

    return checkpoint(run, *inputs, use_reentrant=False, context_fn=partial(selective_contexts, _policy))


def _policy(context: Any, operator: Any, *inputs: Any, **_: Any) -> CheckpointPolicy:
    del context
    name = operator.overloadpacket.__name__
    is_kept = name in ATTENTION or (name in PRODUCTS and not _is_small(*inputs[-2:]))
    return CheckpointPolicy.MUST_SAVE if is_kept else CheckpointPolicy.PREFER_RECOMPUTE


def _is_small(left: Tensor, right: Tensor) -> bool:
    """Tell whether a product takes little time for the size of its result, as an adapter's second matrix does."""
    return left.shape[-1] < SMALL <= right.shape[-1]


def _offload(layer: Callable[..., Any], *inputs: Any) -> Any:
    """Do the same, with the inputs in host memory."""
    on_gpu = any(isinstance(value, Tensor) and value.is_cuda for value in inputs)
    with saved_tensors_hooks(_sent_away, _brought_back) if on_gpu else save_on_cpu():
        return _recompute(layer, *inputs)


WAYS: Mapping[str, Callable[..., Any]] = {"selective": selective, "offload": _offload}


def _sent_away(part: Tensor) -> Tensor | _Offloaded:
    return _Offloaded(part) if part.is_cuda else part


def _brought_back(saved: Tensor | _Offloaded) -> Tensor:
    return saved.fetched() if isinstance(saved, _Offloaded) else saved


class _Offloaded:
    """A GPU tensor in host memory. Both copies run in parallel to the computation, on their own stream.

    The previous tensor is fetched while this one is used, because a backward pass uses them in reverse order.
    """

    streams: ClassVar[dict[torch.device, torch.cuda.Stream]] = {}
    last: ClassVar[list[weakref.ref[_Offloaded]]] = []

    def __init__(self, part: Tensor) -> None:
        """Copy `part`. Its memory is not reused before the copy is done."""
        self._device = part.device
        self._back: Tensor | None = None
        self._before, _Offloaded.last = self.last, [weakref.ref(self)]
        if part.device not in self.streams:
            self.streams[part.device] = torch.cuda.Stream(part.device)  # type: ignore[no-untyped-call]
        self._stream = self.streams[part.device]
        self._stream.wait_stream(torch.cuda.current_stream(part.device))
        with torch.cuda.stream(self._stream):
            self._host = torch.empty_like(part, device="cpu", pin_memory=True)
            self._host.copy_(part, non_blocking=True)
        part.record_stream(self._stream)

    def fetched(self) -> Tensor:
        """Return the tensor on the GPU, ready for the computing stream."""
        back, self._back = self._fetch(), None
        now = torch.cuda.current_stream(self._device)
        now.wait_stream(self._stream)
        back.record_stream(now)
        for earlier in (reference() for reference in self._before):
            if earlier is not None:
                earlier._fetch()
        return back

    def _fetch(self) -> Tensor:
        """Start to copy it back, unless that has started already."""
        if self._back is None:
            with torch.cuda.stream(self._stream):
                self._back = self._host.to(self._device, non_blocking=True)
        return self._back
