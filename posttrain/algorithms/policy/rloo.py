"""RLOO: compare each sample with the mean of the other samples of its prompt."""

from __future__ import annotations

from torch import Tensor

from posttrain.algorithms.advantages import check_group_size, group_sums, grouped
from posttrain.algorithms.objective import AlgorithmRow


def leave_one_out(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """R_i - mean_{j != i}(R_j) within the group (Ahmadian 2024)."""
    total_B, count_B = group_sums(reward_B, group_B)
    check_group_size(count_B, "leave_one_out")
    return reward_B - (total_B - reward_B) / (count_B - 1)


ADVANTAGES = {"leave_one_out": grouped(leave_one_out, "R - mean of the siblings")}
ROWS = {
    "rloo": AlgorithmRow(
        "Ahmadian 2024, arXiv:2402.14740",
        "-mean_i sum_t A logp, A = R - mean of the siblings' R, R = reward - beta sum_t k1",
        {
            "advantage": "leave_one_out",
            "surrogate": "reinforce",
            "aggregation": "sequence_sum",
            "kl": {"type": "reward_sequence", "estimator": "k1", "beta": 0.05},
        },
    )
}
