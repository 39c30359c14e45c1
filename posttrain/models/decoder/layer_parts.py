"""The two parts of a decoder layer around attention, for one token of each row. They can be compiled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

Matrix = tuple[Tensor, Tensor | None]
"""A linear layer's weight and bias."""
COMPILER: dict[str, str | int | bool | Callable[..., Any]] = {"deterministic": True}
"""Options of torch's compiler: nothing is chosen by timing."""


def before_attention(
    x: Tensor, norm: Tensor, qkv: Matrix, head_norms: tuple[Tensor, Tensor] | None, turn: tuple[Tensor, Tensor],
    kv_heads: int, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return a layer's queries, keys and values [R, H, 1, D]. `turn`: cosine and signed sine of each row's position."""
    return query_key_value(linear(rms_norm(x, x.shape[1:], norm, eps), *qkv), head_norms, turn, kv_heads, eps)


def query_key_value(
    qkv: Tensor, head_norms: tuple[Tensor, Tensor] | None, turn: tuple[Tensor, Tensor], kv_heads: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the three parts of a product [R, H, 1, D], normed, with rotary positions applied."""
    cos, sin = turn
    size = cos.shape[-1]
    split = qkv.view(qkv.shape[0], -1, size)
    rotated = split.shape[1] - kv_heads
    heads, both = rotated - kv_heads, split[:, :rotated]
    if head_norms is not None:
        parts = (split[:, :heads], split[:, heads:rotated])
        normed = [rms_norm(part.to(w.dtype), (size,), w, eps) for part, w in zip(parts, head_norms, strict=True)]
        both = torch.cat(normed, dim=1)
    both = (both * cos).addcmul_(both.roll(size // 2, -1), sin)[:, :, None]
    return both[:, :heads], both[:, heads:], split[:, rotated:, None]


def after_attention(
    x: Tensor, mixed: Tensor, out: Matrix, norm: Tensor, gate_up: Matrix, down: Matrix, eps: float
) -> Tensor:
    """Return a layer's output from its input and the attention result."""
    x = added(x, mixed, *out)
    gate, up = linear(rms_norm(x, x.shape[1:], norm, eps), *gate_up).chunk(2, dim=1)
    return added(x, silu(gate).mul_(up), *down)


def added(x: Tensor, part: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x + linear(part), in one product."""
    return torch.addmm(x if bias is None else x + bias, part, weight.t())


def compiled_part(part: Callable[..., Any]) -> Callable[..., Any]:
    """Return one of the parts compiled for any number of rows. All layers share its code."""
    body = torch.compile(part, dynamic=False, options=COMPILER)

    def run(*inputs: Any) -> Any:
        rows = inputs[0].shape[0]
        for each in inputs:
            for moving in each if isinstance(each, tuple) else (each,):
                if isinstance(moving, Tensor) and moving.dim() > 1 and moving.shape[0] == rows:
                    torch._dynamo.maybe_mark_dynamic(moving, 0)
        return body(*inputs)

    return run
