"""Attention of packed rows on a CUDA GPU with torch's variable-length kernel.

The first row of each prompt is one segment of queries, and so is the rest of each other row of that prompt. Segments
are in the order of the packed tokens, so queries are not copied. A segment's keys are all tokens of its row up to its
end. So a shared prompt is attended to once, and its other rows only gather keys and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from inspect import signature
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from posttrain.models.device import in_segments
from posttrain.models.forward.flash import OWN, use_newest, use_own
from posttrain.models.forward.schedule import Row, cuts
from posttrain.text.packing import PackedRows, sent


@dataclass(frozen=True)
class Segments:
    """Segments of queries with their keys.

    The last query of a segment sees all keys, the query before it one key less.
    """

    query_ends: Tensor
    """Where each segment ends in the packed tokens, starting with 0, as int32 for the kernel."""
    key_ends: Tensor
    """The same for the gathered keys."""
    key_tokens: Tensor | None
    """The packed token of each gathered key; None without shared prompts, where the keys are the packed tokens."""
    longest_query: int
    longest_key: int
    rows: tuple[Row, ...] = ()
    """The numbers of queries and keys of each segment."""
    keys: tuple[int, ...] = ()
    """The packed token of each key, in host memory."""
    split: dict[int, Split | None] = field(default_factory=dict, compare=False)
    """The cuts of calls with this number of heads, once known."""


@dataclass(frozen=True)
class Split:
    """Several calls instead of one, with the longest segments first."""

    query_order: Tensor
    """The packed token of each query, call after call."""
    query_place: Tensor
    """Where each packed token's query is in that order."""
    key_tokens: Tensor
    """The packed token of each key, call after call."""
    calls: tuple[Segments, ...]


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
        tuple(zip(queries, keys, strict=True)),
        tuple(tokens),
    )


def _ends(sizes: list[int]) -> Tensor:
    return torch.tensor([0, *accumulate(sizes)], dtype=torch.int32)


def supports(query: Tensor, value: Tensor) -> bool:
    """Tell whether the kernel supports these heads and no second derivative is needed (TRPO)."""
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
    """Tell whether the kernel supports these heads, with keys and values in pages."""
    attention = kernel() if in_segments(head, head) else None
    return attention is not None and "block_table" in signature(attention).parameters


def attend_segments(
    query_NHD: Tensor,
    key_NHD: Tensor,
    value_NHD: Tensor,
    segments: Segments,
    scale: float,
    window: int | None = None,
    *,
    decodes: bool = False,
) -> Tensor:
    """Return the outputs of the packed tokens [N, H, D]. `decodes`: by the kernel that decoding uses."""
    if decodes or not query_NHD.is_cuda:
        use_own()
    elif use_newest(query_NHD, key_NHD) == OWN and torch.is_grad_enabled():
        split = split_of(segments, query_NHD)
        if split is not None:
            return _attend_split(query_NHD, key_NHD, value_NHD, split, scale, window)
    if segments.key_tokens is not None:
        key_NHD, value_NHD = (part.index_select(0, segments.key_tokens) for part in (key_NHD, value_NHD))
    return _attend(query_NHD, key_NHD, value_NHD, segments, scale, window)


def _attend(query: Tensor, key: Tensor, value: Tensor, segments: Segments, scale: float, window: int | None) -> Tensor:
    """Return the outputs of one call, whose keys are gathered."""
    attend = kernel()
    assert attend is not None, "check `supports` first"
    out: Tensor = attend(
        query.contiguous(),
        key.contiguous(),
        value.contiguous(),
        segments.query_ends,
        segments.key_ends,
        segments.longest_query,
        segments.longest_key,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return out


def split_of(segments: Segments, query_NHD: Tensor) -> Split | None:
    """Return the cuts of a call; None if its backward pass would not be serial for long."""
    heads = query_NHD.shape[1]
    if not torch.are_deterministic_algorithms_enabled() or len(segments.rows) < 2:
        return None
    if heads not in segments.split:
        sms = torch.cuda.get_device_properties(query_NHD.device).multi_processor_count
        segments.split[heads] = _split(segments, heads, sms)
    return segments.split[heads]


def _split(segments: Segments, heads: int, sms: int) -> Split | None:
    rows = segments.rows
    order = sorted(range(len(rows)), key=lambda place: (-rows[place][1], place))
    counts = cuts([rows[place] for place in order], heads, sms)
    if len(counts) == 1:
        return None
    device = segments.query_ends.device
    starts = [[0, *accumulate(row[side] for row in rows)] for side in (0, 1)]
    queries = [token for place in order for token in range(starts[0][place], starts[0][place + 1])]
    keys = [token for place in order for token in segments.keys[starts[1][place] : starts[1][place + 1]]]
    taken, calls = iter(order), []
    for count in counts:
        piece = [rows[next(taken)] for _ in range(count)]
        query_ends, key_ends = (sent(_ends([row[side] for row in piece]), device) for side in (0, 1))
        longest = [max(row[side] for row in piece) for side in (0, 1)]
        calls.append(Segments(query_ends, key_ends, None, longest[0], longest[1], tuple(piece)))
    query_order = torch.tensor(queries)
    query_place, key_tokens = query_order.argsort(), torch.tensor(keys)
    return Split(sent(query_order, device), sent(query_place, device), sent(key_tokens, device), tuple(calls))


def _attend_split(query: Tensor, key: Tensor, value: Tensor, split: Split, scale: float, window: int | None) -> Tensor:
    """Return the outputs of several calls, each token's in its packed place."""
    shared = len(split.key_tokens) > len(split.query_order)
    query = reordered(query, split.query_order, split.query_place)
    key, value = (
        part.index_select(0, split.key_tokens) if shared else reordered(part, split.query_order, split.query_place)
        for part in (key, value)
    )
    queries, keys = ([sum(row[side] for row in call.rows) for call in split.calls] for side in (0, 1))
    parts = (torch.split(part, size) for part, size in ((query, queries), (key, keys), (value, keys)))
    outs = [
        _attend(query, key, value, call, scale, window)
        for call, query, key, value in zip(split.calls, *parts, strict=True)
    ]
    return reordered(torch.cat(outs), split.query_place, split.query_order)


def reordered(part: Tensor, order: Tensor, place: Tensor) -> Tensor:
    """Return part[order]. `place` is the inverse order; with it, the gradient needs no sums."""
    out: Tensor = _Reordered.apply(part, order, place)  # type: ignore[no-untyped-call]
    return out


class _Reordered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, order: Tensor, place: Tensor) -> Tensor:
        ctx.save_for_backward(place)
        return part.index_select(0, order)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return grads[0].index_select(0, ctx.saved_tensors[0]), None, None
