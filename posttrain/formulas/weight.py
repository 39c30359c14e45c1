"""Aggregation as a weight per token, computed once per optimizer step.

Because the weights are fixed before the step is cut into micro-batches or spread over processes, no cut can change
the loss: it is sum(weight * item) whichever way it is summed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.formulas.ragged import spread


def sequence_sum(lengths_B: Tensor, kept_B: Tensor) -> Tensor:
    """1 / B: sum over a sequence's tokens, then the mean over sequences."""
    return spread(kept_B / kept_B.sum().clamp(min=1), lengths_B)


def sequence_mean(lengths_B: Tensor, kept_B: Tensor) -> Tensor:
    """1 / (B |o_i|): mean over a sequence's tokens, then over sequences."""
    return spread(kept_B / (lengths_B.clamp(min=1) * kept_B.sum().clamp(min=1)), lengths_B)


def token_mean(lengths_B: Tensor, kept_B: Tensor) -> Tensor:
    """1 / sum_i |o_i|: mean over all tokens of the step."""
    return spread(kept_B / (lengths_B * kept_B).sum().clamp(min=1), lengths_B)


def fixed_length(lengths_B: Tensor, kept_B: Tensor, max_length: int) -> Tensor:
    """1 / (B L_max): the sum over a constant (Dr. GRPO, Liu 2025)."""
    return spread(kept_B / (kept_B.sum().clamp(min=1) * max_length), lengths_B)


def kept_rows(lengths_B: Tensor, dropped_B: Tensor | None, like: Tensor) -> Tensor:
    """1.0 for rows that count and 0.0 for those dropped or empty, in `like`'s dtype."""
    counts_B = lengths_B > 0 if dropped_B is None else (lengths_B > 0) & ~dropped_B.bool()
    return counts_B.to(torch.promote_types(like.dtype, torch.float32))


def per_item(item_B: Tensor) -> Tensor:
    """1 / items on each row, in double precision: the mean over items, whichever rows an item has."""
    count = max(torch.unique(item_B).numel(), 1)
    return torch.full(item_B.shape, 1 / count, dtype=torch.float64, device=item_B.device)
