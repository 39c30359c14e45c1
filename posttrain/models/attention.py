"""One attention function for every transformers model, which asks the layout it is given.

transformers' models look their attention up by name and hand extra keyword arguments down to it. `posttrain` is
registered once; training passes a packed layout, decoding a cache, and the model's own code stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from posttrain.errors import ModelError
from posttrain.text.layout import Layout

NAME = "posttrain"


@dataclass(frozen=True)
class Scoring:
    """How a layer scores a key for a query: scale, sliding window, soft cap, and a score of nothing for each head."""

    scale: float
    window: int | None = None
    cap: float | None = None
    sink_H: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Whether torch's own attention knows how."""
        return self.cap is None and self.sink_H is None

    def capped(self, scores: Tensor) -> Tensor:
        """The scores within the cap, before anything is masked."""
        return scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)

    def weights(self, scores: Tensor) -> Tensor:
        """Softmax over the keys [.., H, Q, T], in float32 at least; a head's sink takes its share and gives nothing."""
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.sink_H is None:
            return scores.softmax(-1)
        sink = self.sink_H.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


class Attends(Protocol):
    """Something that knows which tokens see which: [1|B, H, N, D] queries, keys, values -> [1|B, N, H, D]."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor: ...


class PackedAttention:
    """Causal attention within each row of a packed layout."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Gather rows side by side, attend causally, put each token's output back in its packed place."""
        del layer
        query_N, key_N, value_N = (part[0].transpose(0, 1) for part in (query, key, value))
        outputs = []
        for gather in self._layout.gathers:
            out = _causal(_rows(query_N, gather), _rows(key_N, gather), _rows(value_N, gather), scoring)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, self._layout.take_N)[None]


def _causal(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
    """[S, H, T, D] queries with [S, K, T, D] keys and values -> [S, H, T, D]."""
    band = _band(query.shape[2], scoring.window, query.device)
    if scoring.plain:
        return scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=band,
            is_causal=band is None,
            scale=scoring.scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value))
    seen = (
        torch.ones(query.shape[2], query.shape[2], dtype=torch.bool, device=query.device).tril()
        if band is None
        else band
    )
    scores = scoring.capped(query @ key.transpose(2, 3) * scoring.scale)
    return scoring.weights(scores.masked_fill(~seen, -torch.inf)).to(value.dtype) @ value


def _rows(part_N: Tensor, gather: Tensor) -> Tensor:
    """[N, H, D] -> [S, H, T, D]."""
    rows, width = gather.shape
    return part_N.index_select(0, gather.flatten()).view(rows, width, *part_N.shape[1:]).transpose(1, 2)


def _band(width: int, window: int | None, device: torch.device) -> Tensor | None:
    """Who sees whom [T, T] where a row is longer than the sliding window; None where it is only causal."""
    if window is None or width <= window:
        return None
    return torch.ones(width, width, dtype=torch.bool, device=device).tril().triu(1 - window)


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
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """What transformers calls in each layer."""
    del attention_mask
    where = f"layer {getattr(module, 'layer_idx', '?')} of {type(module).__name__}"
    if layout is None:
        raise ModelError(what="called without a layout", where=where, fix="Call it through posttrain.models.forward")
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return layout.attend(layer, query, key, value, Scoring(scale, sliding_window, softcap, s_aux)), None


def register() -> str:
    """Make the function known to transformers; returns its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    return NAME
