"""FlashAttention over segments on the second device, with what its C++ refuses (flash_api.cpp of torch 2.13).

The backward pass adds up blocks of keys in a random order, as atomic additions may, unless deterministic algorithms are
on and do not only warn: then torch takes another kernel.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

BLOCK = 128
"""Keys of a block of the backward pass."""
OLDEST = (8, 0)
"""Ampere."""


@dataclass(frozen=True)
class _Segment:
    """One segment in float32, its keys and values repeated for each head of the queries."""

    queries: slice
    keys: slice
    query_HQD: Tensor
    key_HTD: Tensor
    value_HTD: Tensor
    scores_HQT: Tensor


def check(query: Tensor, key: Tensor, value: Tensor, *ends: Tensor) -> None:
    """Refuse what the kernel refuses."""
    size, heads, kv_heads = query.shape[2], query.shape[1], key.shape[1]
    half = query.dtype in (torch.float16, torch.bfloat16)
    faults = {
        "FlashAttention only supports Ampere GPUs or newer.": torch.cuda.get_device_capability() < OLDEST,
        "FlashAttention only support fp16 and bf16 data type": not half,
        "query, key and value must have the same dtype": not query.dtype == key.dtype == value.dtype,
        "Input tensor must be on CUDA": not all(part.is_cuda for part in (query, key, value, *ends)),
        "Input tensor must have contiguous last dimension": any(part.stride(-1) != 1 for part in (query, key, value)),
        "cu_seqlens must have dtype int32": any(part.dtype != torch.int32 for part in ends),
        "cu_seqlens must be contiguous": not all(part.is_contiguous() for part in ends),
        "batch size must be positive": ends[0].numel() < 2,
        "FlashAttention forward only supports head dimension at most 256": size > 256,
        "Number of heads in key/value must divide number of heads in query": heads % kv_heads != 0,
        "head_size must be a multiple of 8, this is ensured by padding!": size % 8 != 0,
        "k must have shape (total_k, num_heads_k, head_size)": key.shape != value.shape or key.shape[2] != size,
    }
    for what, holds in faults.items():
        if holds:
            raise RuntimeError(what)


def check_pages(
    query: Tensor, key: Tensor, value: Tensor, ends: Tensor, used: Tensor, table: Tensor, splits: int | None
) -> None:
    """Refuse what the kernel refuses of pages, and what is known to give NaN."""
    rows = ends.numel() - 1
    faults = {
        "block_table must have dtype torch.int32": table.dtype != torch.int32,
        "block_table must have contiguous last dimension": table.stride(-1) != 1,
        "Paged KV cache block size must be divisible by 256": key.shape[1] % 256 != 0,
        "seqused_k must have dtype int32": used.dtype != torch.int32,
        "seqused_k must be on CUDA device": not used.is_cuda or not table.is_cuda,
        "seqused_k must be contiguous": not used.is_contiguous(),
        "block_table, seqused_k must have shape (batch_size, ..)": table.shape[0] != rows or used.shape != (rows,),
        "k must have shape (num_blocks, page_block_size, num_heads_k, head_size)": key.dim() != 4 or query.dim() != 3,
        "the automatic num_splits gives NaN over pages (torch 2.13)": splits != 1,
    }
    for what, holds in faults.items():
        if holds:
            raise RuntimeError(what)


def _unpaged(key: Tensor, value: Tensor, used: Tensor, table: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The keys and values of each row, one row after the other, and where each row ends."""
    counts = used.tolist()
    rows = [(table[nth].long(), count) for nth, count in enumerate(counts)]
    parts = [torch.cat([part[pages].flatten(0, 1)[:count] for pages, count in rows]) for part in (key, value)]
    ends = torch.tensor([0, *counts], dtype=torch.int32).cumsum(0).to(torch.int32).to(key.device)
    return parts[0], parts[1], ends


def _segments(
    query: Tensor, key: Tensor, value: Tensor, query_ends: Tensor, key_ends: Tensor, scale: float, left: int, right: int
) -> Iterator[_Segment]:
    groups, q, k = query.shape[1] // key.shape[1], query_ends.tolist(), key_ends.tolist()
    for q0, q1, k0, k1 in zip(q, q[1:], k, k[1:], strict=False):
        heads = query[q0:q1].float().transpose(0, 1)
        keys, values = (part[k0:k1].float().transpose(0, 1).repeat_interleave(groups, 0) for part in (key, value))
        own_Q1, at_T = torch.arange(k1 - k0 - (q1 - q0), k1 - k0)[:, None], torch.arange(k1 - k0)
        unseen_QT = torch.zeros(q1 - q0, k1 - k0, dtype=torch.bool)
        if right >= 0:
            unseen_QT |= at_T > own_Q1 + right
        if left >= 0:
            unseen_QT |= at_T < own_Q1 - left
        scores = (heads @ keys.transpose(1, 2) * scale).masked_fill(unseen_QT, -torch.inf)
        yield _Segment(slice(q0, q1), slice(k0, k1), heads, keys, values, scores)


def _window(left: int | None, right: int | None, causal: bool, longest: int) -> tuple[int, int]:
    sides = (-1 if left is None else left, 0 if causal else -1 if right is None else right)
    return (-1 if sides[0] >= longest else sides[0]), (-1 if sides[1] >= longest else sides[1])


def forward(
    query: Tensor, key: Tensor, value: Tensor, cum_seq_q: Tensor, cum_seq_k: Tensor, max_q: int, max_k: int,
    dropout_p: float, is_causal: bool, return_debug_mask: bool, *, scale: float | None = None,
    window_size_left: int | None = None, window_size_right: int | None = None, seqused_k: Any = None,
    alibi_slopes: Any = None, block_table: Any = None, num_splits: Any = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute aten::_flash_attention_forward."""
    left, right = _window(window_size_left, window_size_right, is_causal and max_q > 1, max_k)
    device, scale = query.device, query.shape[2] ** -0.5 if scale is None else scale
    if block_table is not None:
        check_pages(query, key, value, cum_seq_q, seqused_k, block_table, num_splits)
        key, value, cum_seq_k = _unpaged(key, value, seqused_k, block_table)
    check(query, key, value, cum_seq_q, cum_seq_k)
    host = [part.cpu() for part in (query, key, value, cum_seq_q, cum_seq_k)]
    out, sums = torch.empty_like(host[0]), torch.empty(query.shape[1], query.shape[0])
    for one in _segments(*host, scale, left, right):  # type: ignore[arg-type]
        out[one.queries] = (one.scores_HQT.softmax(-1) @ one.value_HTD).transpose(0, 1).to(out.dtype)
        sums[:, one.queries] = one.scores_HQT.logsumexp(-1)
    state, unused = torch.zeros(2, dtype=torch.uint64), torch.zeros((), dtype=torch.uint64)
    return tuple(part.to(device) for part in (out, sums, state, unused, torch.empty(0, dtype=out.dtype)))


def backward(
    grad_out: Tensor, query: Tensor, key: Tensor, value: Tensor, out: Tensor, logsumexp: Tensor, cum_seq_q: Tensor,
    cum_seq_k: Tensor, max_q: int, max_k: int, dropout_p: float, is_causal: bool, rng_state: Tensor, unused: Tensor, *,
    scale: float | None = None, window_size_left: int | None = None, window_size_right: int | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Compute aten::_flash_attention_backward."""
    check(query, key, value, cum_seq_q, cum_seq_k)
    if grad_out.dtype != query.dtype:
        raise RuntimeError("query and dout must have the same dtype")
    left, right = _window(window_size_left, window_size_right, is_causal, max_k)
    device, scale = query.device, query.shape[2] ** -0.5 if scale is None else scale
    grad, *host = (part.cpu() for part in (grad_out, query, key, value, cum_seq_q, cum_seq_k))
    grads = [torch.zeros_like(part, dtype=torch.float32) for part in host[:3]]
    for one in _segments(*host, scale, left, right):  # type: ignore[arg-type]
        p, slope = one.scores_HQT.softmax(-1), grad[one.queries].float().transpose(0, 1)
        mean = (slope * (p @ one.value_HTD)).sum(-1, keepdim=True)
        along = p * (slope @ one.value_HTD.transpose(1, 2) - mean) * scale
        for low in _order(along.shape[2]):
            block = slice(low, low + BLOCK)
            grads[0][one.queries] += (along[:, :, block] @ one.key_HTD[:, block]).transpose(0, 1)
        parts = (along.transpose(1, 2) @ one.query_HQD, p.transpose(1, 2) @ slope)
        for total, part in zip(grads[1:], parts, strict=True):
            total[one.keys] = part.view(key.shape[1], -1, *part.shape[1:]).sum(1).transpose(0, 1)
    return tuple(total.to(query.dtype).to(device) for total in grads)


def _order(keys: int) -> list[int]:
    """The first key of each block, in the order in which the blocks are added up."""
    blocks = [*range(0, keys, BLOCK)]
    if not torch.are_deterministic_algorithms_enabled() or torch.is_deterministic_algorithms_warn_only_enabled():
        random.SystemRandom().shuffle(blocks)
    return blocks
