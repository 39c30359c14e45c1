"""One attention function for every transformers model, which asks the layout it is given.

transformers' models look their attention up by name and hand extra keyword arguments down to it. `posttrain` is
registered once; training passes a packed layout, decoding a preallocated cache, and the model's own code stays.
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

    longest: int

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor: ...


class PackedAttention:
    """Causal attention within each row of a packed layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self.longest = max((gather.shape[1] for gather in layout.gathers), default=0)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Tensor:
        """Gather rows side by side, attend causally, put each token's output back in its packed place."""
        del layer
        query_N, key_N, value_N = (part[0].transpose(0, 1) for part in (query, key, value))
        outputs = []
        for gather in self._layout.gathers:
            out = scaled_dot_product_attention(
                _rows(query_N, gather),
                _rows(key_N, gather),
                _rows(value_N, gather),
                is_causal=True,
                scale=scale,
                enable_gqa=_grouped(query, key),
            )
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._layout.take_N)[None]


def _rows(part_N: Tensor, gather: Tensor) -> Tensor:
    """[N, H, D] -> [S, H, T, D]."""
    rows, width = gather.shape
    return part_N.index_select(0, gather.flatten()).view(rows, width, *part_N.shape[1:]).transpose(1, 2)


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
    if softcap is not None or (sliding_window is not None and layout.longest > sliding_window):
        raise ModelError(
            what=f"attention soft-capping or a sliding window of {sliding_window} shorter than {layout.longest} tokens",
            where=where,
            mend="Shorten the sequences or use a model with full attention",
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    return layout.attend(int(module.layer_idx), query, key, value, scale), None  # type: ignore[arg-type]


def register() -> str:
    """Make the function known to transformers; returns its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    return NAME
