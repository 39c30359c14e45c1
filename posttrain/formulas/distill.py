"""Divergences between a teacher's and a student's next-token distributions over the vocabulary, per token.

Logits are computed in tiles (`tiled`), so that only one tile is in memory. If only a teacher's K likeliest tokens are
known, all others count as one class. The divergence of these classes is at most the one over the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Divergence = Callable[[Tensor, Tensor], Tensor]
Logits = Callable[[Tensor], Tensor]
"""Hidden states [M, D] -> logits [M, V]."""
TILE_TOKENS = 1024
"""Tokens whose logits are in memory at a time."""
LEAST_REST = math.log(1e-9)
"""The smallest log-prob of all other tokens together. For a teacher, rounded log-probs leave only an estimate."""


def forward_kl(student_NV: Tensor, teacher_NV: Tensor, temperature: float = 1.0) -> Tensor:
    """Return KL(teacher || student) = sum_v p (log p - log q), which covers the teacher's modes (Hinton 2015)."""
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
    """Return the divergence at each hidden state.

    Logits of `tile` tokens at a time are recomputed in the backward pass.
    """

    def tile_divergence(student_MD: Tensor, teacher_MD: Tensor) -> Tensor:
        return divergence(student(student_MD), teacher(teacher_MD))

    starts = range(0, student_ND.shape[0], tile)
    parts = [(student_ND[start : start + tile], teacher_ND[start : start + tile]) for start in starts]
    values = [checkpoint(tile_divergence, *part, use_reentrant=False) for part in parts]
    return torch.cat(values) if values else student_ND.new_zeros(0)


def log_probs(logits_NV: Tensor, temperature: float) -> Tensor:
    """Return log-probs in float32 or higher precision."""
    wide = logits_NV.to(torch.promote_types(logits_NV.dtype, torch.float32))
    return (wide / temperature).log_softmax(-1)


def kl(log_a: Tensor, log_b: Tensor) -> Tensor:
    """Return sum_v a (log a - log b)."""
    return (log_a.exp() * (log_a - log_b)).sum(-1)


def with_rest(logps_NK: Tensor) -> Tensor:
    """Return the log-probs of K tokens, and of all others together: [N, K + 1]."""
    sum_N = logps_NK.logsumexp(-1).clamp(max=math.log1p(-math.exp(LEAST_REST)))
    return torch.cat([logps_NK, torch.log(-torch.expm1(sum_N))[:, None]], -1)


def classes(logits_NV: Tensor, ids_NK: Tensor) -> Tensor:
    """Return the log-probs of these tokens under the logits, and of all others together: [N, K + 1]."""
    logp_NV = log_probs(logits_NV, 1.0)
    others_NV = logp_NV.scatter(-1, ids_NK, -1e30)  # finite: where no token is left, its gradient is 0 and not NaN
    rest_N = others_NV.logsumexp(-1).clamp(min=LEAST_REST)
    return torch.cat([logp_NV.gather(-1, ids_NK), rest_N[:, None]], -1)
