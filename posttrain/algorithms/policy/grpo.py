"""GRPO: compare each sample with its group by mean and spread; variants have other settings."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.advantages import check_group_size, group_range, group_sums, grouped
from posttrain.algorithms.objective import AlgorithmRow

EPS = 1e-4
ZSCORE = "group_zscore"
"""The default advantage."""


def group_centred(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """R_i - mean_group(R), exactly 0 where the rewards are all equal (Dr. GRPO, Liu 2025)."""
    total_B, count_B = group_sums(reward_B, group_B)
    check_group_size(count_B, "group_centred")
    return (reward_B - total_B / count_B).masked_fill(group_range(reward_B, group_B) == 0, 0.0)


def group_zscore(reward_B: Tensor, group_B: Tensor, eps: float = EPS) -> Tensor:
    """(R_i - mean) / (std + eps) in the group, ddof 1, and 0 where its rewards are all equal (Shao 2024)."""
    centred_B = group_centred(reward_B, group_B)
    squares_B, count_B = group_sums(centred_B.square(), group_B)
    std_B = (squares_B / (count_B - 1)).sqrt()
    return centred_B / (std_B + eps)


ADVANTAGES = {
    "group_zscore": grouped(group_zscore, "(R - mean) / (std + 1e-4) in the group, 0 where its rewards are equal"),
    "group_centred": grouped(group_centred, "R - mean of the group"),
}
ROWS = {
    "grpo": AlgorithmRow(
        "Shao 2024, arXiv:2402.03300",
        "-mean_i mean_t [min(r A, clip(r) A) - beta k3], A = (R - mean) / (std + eps)",
        {"kl": {"type": "loss", "estimator": "k3", "beta": 0.04}},
    ),
    "dr_grpo": AlgorithmRow(
        "Liu 2025, arXiv:2503.20783",
        "-sum_i sum_t min(r A, clip(r) A) / (B L_max), A = R - mean",
        {"advantage": "group_centred", "aggregation": "fixed_length"},
    ),
    "dapo": AlgorithmRow(
        "Yu 2025, arXiv:2503.14476",
        "-mean_tokens min(r A, clip(r, 0.8, 1.28) A), groups that agree sampled again, soft overlong punishment",
        {"aggregation": "token_mean", "surrogate": {"high": 0.28}, "resample": 3, "overlong": 0.2},
    ),
    "grpo_plus": AlgorithmRow(
        "Luo 2025 (DeepCoder), together.ai/blog/deepcoder",
        "-mean_i mean_t min(r A, clip(r, 0.8, 1.4) A), truncated answers give no loss",
        {"surrogate": {"high": 0.4}, "truncated": "mask"},
    ),
}
