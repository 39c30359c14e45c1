"""Attention of packed rows on a CUDA GPU with torch's variable-length kernel.

The first row of each prompt is one segment of queries, and so is the rest of each other row of that prompt. Segments
are in the order of the packed tokens, so queries are not copied. A segment's keys are all tokens of its row up to its
end. So a shared prompt is attended to once, and its other rows only gather keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from posttrain.models.device import in_segments
from posttrain.text.packing import PackedRows, sent


@dataclass(frozen=True)
class Segments:
    """Segments of queries with their keys. The last query of a segment sees all keys, the one before one less."""

    query_ends: Tensor
    """Where each segment ends in the packed tokens, starting with 0, as int32 for the kernel."""
    key_ends: Tensor
    """The same for the gathered keys."""
    key_tokens: Tensor | None
    """The packed token of each gathered key; None without shared prompts, where the keys are the packed tokens."""
    longest_query: int
    longest_key: int


def segments_of(packed: PackedRows) -> Segments:
    """Return the segments of a packed batch, on its device."""
    queries: list[int] = []
    keys: list[int] = []
    tokens: list[int] = []
    before = None
    for start, length, first, count in packed.spans:
        shared, before = before == (start, length), (start, length)
        if query := (0 if shared else length) + count:
            queries.append(query)
            keys.append(length + count)
            tokens += [*range(start, start + length), *range(first, first + count)]
    device = packed.ids_N.device
    return Segments(
        sent(_ends(queries), device),
        sent(_ends(keys), device),
        sent(torch.tensor(tokens), device) if len(tokens) > packed.ids_N.numel() else None,
        max(queries, default=0),
        max(keys, default=0),
    )


def _ends(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)


def supports(query: Tensor, value: Tensor) -> bool:
    """Return whether the kernel supports these heads and no second derivative is needed (TRPO)."""
    if not in_segments(query, value) or kernel() is None:
        return False
    return bool(torch.backends.cuda.flash_sdp_enabled())  # type: ignore[no-untyped-call]


@lru_cache(maxsize=1)
def kernel() -> Callable[..., Any] | None:
    """Return torch's varlen_attn; None in versions without it, its windows or its grouped keys."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return None
    return varlen_attn if {"window_size", "enable_gqa"} <= signature(varlen_attn).parameters.keys() else None


def takes_pages(head: Tensor) -> bool:
    """Return whether the kernel supports such heads, with keys and values in pages."""
    found = kernel()
    return in_segments(head, head) and found is not None and "block_table" in signature(found).parameters


def attend_segments(
    query_NHD: Tensor,
    key_NHD: Tensor,
    value_NHD: Tensor,
    segments: Segments,
    scale: float,
    window: int | None = None,
) -> Tensor:
    """Return the outputs of the packed tokens [N, H, D]."""
    attend = kernel()
    assert attend is not None, "check `supports` first"
    if segments.key_tokens is not None:
        key_NHD, value_NHD = (part.index_select(0, segments.key_tokens) for part in (key_NHD, value_NHD))
    out: Tensor = attend(
        query_NHD.contiguous(),
        key_NHD.contiguous(),
        value_NHD.contiguous(),
        segments.query_ends,
        segments.key_ends,
        segments.longest_query,
        segments.longest_key,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query_NHD.shape[1] != key_NHD.shape[1],
    )
    return out
