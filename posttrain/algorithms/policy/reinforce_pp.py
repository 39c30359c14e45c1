"""REINFORCE++: PPO's clip without a critic. Each token's return is whitened over the step."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.advantages import Advantage, Rewards, by_token
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.ppo import gae
from posttrain.settings.choices import Options


class ReturnOptions(Options):
    """The discount."""

    gamma: float = Field(1.0, gt=0, le=1, description="discount factor")


def return_to_go(reward_N: Tensor, lengths_B: Tensor, gamma: float = 1.0) -> Tensor:
    """sum_l gamma^l r_{t+l}: the return from a token on (Hu 2025); GAE without a critic, lambda 1."""
    advantage_N, _ = gae(reward_N, torch.zeros_like(reward_N), lengths_B, gamma=gamma, lam=1.0)
    return advantage_N


def _return_to_go(rewards: Rewards, options: ReturnOptions) -> dict[str, Tensor]:
    return {"advantage": return_to_go(by_token(rewards), rewards.step.lengths_B, options.gamma)}


ADVANTAGES = {
    "return_to_go": Advantage(ReturnOptions, _return_to_go, "sum_l gamma^l r_{t+l}", token_rewards=True, per_token=True)
}
ROWS = {
    "reinforce_pp": AlgorithmRow(
        "Hu 2025, arXiv:2501.03262",
        "-mean_tokens min(r A, clip(r) A), A_t = R - beta sum_{s >= t} k1_s, whitened over all tokens of the step",
        {
            "advantage": "return_to_go",
            "aggregation": "token_mean",
            "whiten": True,
            "kl": {"type": "reward_token", "estimator": "k1", "beta": 0.01},
        },
    ),
    "reinforce_pp_baseline": AlgorithmRow(
        "Hu 2025, arXiv:2501.03262",
        "-mean_tokens [min(r A, clip(r) A) - beta k2], A = R - mean of the group, whitened over all tokens of the step",
        {
            "advantage": "group_centred",
            "aggregation": "token_mean",
            "whiten": True,
            "kl": {"type": "loss", "estimator": "k2", "beta": 0.001},
        },
    ),
}
