"""Nash-MD: the rate at which a sample wins against opponents from a mixture of policy and reference."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages import Advantage, Rewards, WinRateOptions, per_row
from posttrain.algorithms.objective import AlgorithmRow


def win_rate(reward_B: Tensor, opponent_B: Tensor, group_B: Tensor, scale: float = 1.0) -> Tensor:
    """mean_j sigmoid((R_i - R_j) / scale) - 1/2 over the opponents j of the row's group (Munos 2023).

    Opponents, and rows without opponents, get 0.
    """
    opponent_B = opponent_B.bool()
    met_BB = (group_B[:, None] == group_B[None, :]) & ~opponent_B[:, None] & opponent_B[None, :]
    won_BB = torch.sigmoid((reward_B[:, None] - reward_B[None, :]) / scale) - 0.5
    return (met_BB * won_BB).sum(1) / met_BB.sum(1).clamp(min=1)


def _win_rate(rewards: Rewards, options: WinRateOptions) -> Tensor:
    """Return the win rates by rewards only, minus the KL penalty."""
    rows = rewards.step.rows
    return win_rate(rewards.reward_B, rows["opponent"], rows["group"], options.scale) - rewards.kl_penalty_B


ADVANTAGES = {
    "win_rate": Advantage(
        WinRateOptions, per_row(_win_rate), "mean_j sigmoid((R_i - R_j) / scale) - 1/2 over opponents j", grouped=True
    )
}
ROWS = {
    "nash_md": AlgorithmRow(
        "Munos 2023, arXiv:2312.00886",
        "-mean_i sum_t A logp, A = mean_j P(i beats j) - 1/2 - beta sum_t k1, j drawn from pi^(1-m) pi_ref^m",
        {
            "advantage": "win_rate",
            "surrogate": "reinforce",
            "aggregation": "sequence_sum",
            "kl": {"type": "reward_sequence", "estimator": "k1", "beta": 0.02},
        },
    )
}
