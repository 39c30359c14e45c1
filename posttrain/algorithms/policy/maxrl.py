"""MaxRL: a group's rewards over their mean, which maximises the likelihood of success."""

from __future__ import annotations

import torch
from torch import Tensor

from posttrain.algorithms.advantages import Advantage, Rewards, group_sums, per_row
from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.grpo import group_centred
from posttrain.errors import ParamsError
from posttrain.settings.choices import Options


def over_mean(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """(R_i - mean) / mean in the group, 0 where the mean is 0, of rewards >= 0 (Tajwar 2026).

    For rewards of 0 and 1 the score function with it is unbiased for the log-likelihood truncated at order G - 1.
    """
    centred_B = group_centred(reward_B, group_B)
    total_B, count_B = group_sums(reward_B, group_B)
    empty_B = total_B == 0
    return torch.where(empty_B, torch.zeros_like(reward_B), centred_B / (total_B / count_B).masked_fill(empty_B, 1.0))


def _over_mean(rewards: Rewards, _: Options) -> Tensor:
    if bool((rewards.reward_B < 0).any()):
        what = f"advantage 'maxrl' divides by a group's mean reward, and a reward is {float(rewards.reward_B.min()):g}"
        fix = "Use rewards of 0 or more, or advantage group_zscore"
        raise ParamsError(what=what, where="reward", fix=fix)
    return over_mean(rewards.reward_B, rewards.step.rows["group"])


ADVANTAGES = {
    "maxrl": Advantage(
        Options,
        per_row(_over_mean),
        "(R - mean) / mean of the group, 0 where the mean is 0; rewards >= 0",
        grouped=True,
        nonnegative=True,
    )
}
ROWS = {
    "maxrl": AlgorithmRow(
        "Tajwar 2026, arXiv:2602.02710",
        "-mean_i sum_t A logp, A = (R - mean) / mean of the group, 0 where the mean is 0",
        {"advantage": "maxrl", "surrogate": "reinforce", "aggregation": "sequence_sum"},
    )
}
