"""One attention function for every transformers model, which asks the layout it is given.

transformers' models look their attention up by name and hand extra keyword arguments down to it. `posttrain` is
registered once; training passes a packed layout, decoding a cache, and the model's own code stays.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from posttrain.errors import ModelError
from posttrain.text.layout import Layout

NAME = "posttrain"


class Attends(Protocol):
    """Something that knows which tokens see which: [1|B, H, N, D] queries, keys, values -> [1|B, N, H, D]."""

    def attend(
        self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None
    ) -> Tensor: ...


class PackedAttention:
    """Causal attention within each row of a packed layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float, window: int | None) -> Tensor:
        """Gather rows side by side, attend causally, put each token's output back in its packed place."""
        del layer
        query_N, key_N, value_N = (part[0].transpose(0, 1) for part in (query, key, value))
        outputs = []
        for gather in self._layout.gathers:
            band = _band(gather.shape[1], window, gather.device)
            out = scaled_dot_product_attention(
                _rows(query_N, gather),
                _rows(key_N, gather),
                _rows(value_N, gather),
                attn_mask=band,
                is_causal=band is None,
                scale=scale,
                enable_gqa=_grouped(query, key),
            )
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._layout.take_N)[None]


def _rows(part_N: Tensor, gather: Tensor) -> Tensor:
    """[N, H, D] -> [S, H, T, D]."""
    rows, width = gather.shape
    return part_N.index_select(0, gather.flatten()).view(rows, width, *part_N.shape[1:]).transpose(1, 2)


def _band(width: int, window: int | None, device: torch.device) -> Tensor | None:
    """Who sees whom [T, T] where a row is longer than the sliding window; None where it is only causal."""
    if window is None or width <= window:
        return None
    return torch.ones(width, width, dtype=torch.bool, device=device).tril().triu(1 - window)


def _grouped(query: Tensor, key: Tensor) -> bool:
    return query.shape[1] != key.shape[1]


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    layout: Attends | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer."""
    del attention_mask
    where = f"layer {getattr(module, 'layer_idx', '?')} of {type(module).__name__}"
    if layout is None:
        raise ModelError(what="called without a layout", where=where, mend="Call it through posttrain.models.forward")
    if softcap is not None:
        mend = "Use a model of another family (docs/generation.md)"
        raise ModelError(what="its attention scores are soft-capped", where=where, mend=mend)
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return layout.attend(layer, query, key, value, scale, sliding_window), None


def register() -> str:
    """Make the function known to transformers; returns its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    return NAME
