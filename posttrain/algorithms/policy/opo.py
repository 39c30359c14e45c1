"""OPO: the baseline with the least variance, a group's rewards weighted by their lengths."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.advantages import Advantage, check_group_size, group_sums, per_row
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.settings.choices import Options


def length_weighted(reward_B: Tensor, group_B: Tensor, length_B: Tensor) -> Tensor:
    """R_i - sum_j(l_j R_j) / sum_j(l_j) in the group, l the tokens of a sample (Hao 2025); 0 where all are empty."""
    total_B, count_B = group_sums(reward_B * length_B, group_B)
    check_group_size(count_B, "opo")
    tokens_B, _ = group_sums(length_B, group_B)
    return (reward_B - total_B / tokens_B.clamp(min=1)).where(tokens_B > 0, reward_B.new_zeros(()))


ADVANTAGES = {
    "opo": Advantage(
        Options,
        per_row(
            lambda rewards, _: length_weighted(
                rewards.penalised, rewards.step.rows["group"], rewards.step.lengths_B.to(rewards.reward_B.dtype)
            )
        ),
        "R - sum(l R) / sum(l) of the group, l the tokens of a sample",
        grouped=True,
        by_length=True,
    )
}
ROWS = {
    "opo": AlgorithmRow(
        "Hao 2025, arXiv:2505.23585",
        "-mean_tokens A logp, A = R - sum(l R) / sum(l) of the group",
        {"advantage": "opo", "surrogate": "reinforce", "aggregation": "token_mean"},
    )
}
