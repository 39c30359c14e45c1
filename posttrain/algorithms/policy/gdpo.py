"""GDPO: GRPO's z-score of each reward separately, then their sum."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from posttrain.algorithms.advantages import Advantage, Rewards, per_row, whiten
from posttrain.algorithms.objective import AlgorithmRow, parts_of
from posttrain.algorithms.policy.grpo import group_zscore
from posttrain.settings.choices import Options


def decoupled(parts: Collection[tuple[Tensor, float]], group_B: Tensor, eps: float = 1e-8) -> Tensor:
    """Return each part's z-score in its group, summed by weight and whitened over the step's rows (Liu 2026)."""
    total_B = torch.zeros_like(next(part_B for part_B, _ in parts))
    for part_B, weight in parts:
        total_B = total_B + weight * group_zscore(part_B, group_B)
    return whiten(total_B, torch.ones_like(total_B), eps)


def _decoupled(rewards: Rewards, _: Options) -> Tensor:
    rows, dtype = rewards.step.rows, rewards.reward_B.dtype
    return decoupled([(part_B.to(dtype), weight) for part_B, weight in parts_of(rows).values()], rows["group"])


ADVANTAGES = {
    "gdpo": Advantage(
        Options,
        per_row(_decoupled),
        "z-score of each reward part in its group, weighted sum, whitened over the step's rows",
        grouped=True,
        by_part=True,
    )
}
ROWS = {
    "gdpo": AlgorithmRow(
        "Liu 2026, arXiv:2601.05242",
        "-mean_i mean_t min(r A, clip(r) A), A = sum_k w_k zscore_group(R_k), whitened over the rows of the step",
        {"advantage": "gdpo"},
    )
}
