"""Divergences between a teacher's and a student's next-token distributions over the vocabulary, one number per token.

Logits are computed in tiles (`tiled`), so that memory is one tile's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Divergence = Callable[[Tensor, Tensor], Tensor]
Logits = Callable[[Tensor], Tensor]
"""Hidden states [M, D] -> logits [M, V]."""
TILE_TOKENS = 1024
"""Tokens whose logits are in memory at a time."""


def forward_kl(student_NV: Tensor, teacher_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """KL(teacher || student) = sum_v p (log p - log q): covers the teacher's modes (Hinton 2015)."""
    log_q, log_p = log_probs(student_NV, temperature), log_probs(teacher_NV, temperature)
    return kl(log_p, log_q)


def tiled(
    divergence: Divergence,
    student_ND: Tensor,
    student: Logits,
    teacher_ND: Tensor,
    teacher: Logits,
    tile: int = TILE_TOKENS,
) -> Tensor:
    """The divergence at each hidden state; logits of `tile` tokens at a time, computed again in the backward pass."""

    def tile_divergence(student_MD: Tensor, teacher_MD: Tensor) -> Tensor:
        return divergence(student(student_MD), teacher(teacher_MD))

    starts = range(0, student_ND.shape[0], tile)
    parts = [(student_ND[start : start + tile], teacher_ND[start : start + tile]) for start in starts]
    values = [checkpoint(tile_divergence, *part, use_reentrant=False) for part in parts]
    return torch.cat(values) if values else student_ND.new_zeros(0)


def log_probs(logits_NV: Tensor, temperature: float) -> Tensor:
    """Return log-probs in float32 at least."""
    wide = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    return (wide / temperature).log_softmax(-1)


def kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """sum_v a (log a - log b)."""
    return (log_a.exp() * (log_a - log_b)).sum(-1)
