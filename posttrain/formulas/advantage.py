"""Advantages: how much better a sample did than expected. No gradient flows through any of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from posttrain.formulas.ragged import from_padded, last_tokens, to_padded

EPS = 1e-4


def group_sums(values_B: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) over each row's group, given back on the rows; groups are any equal numbers, in any order."""
    _, index_B = torch.unique(group_B, return_inverse=True)
    groups = int(index_B.max()) + 1 if index_B.numel() else 0
    sums = values_B.new_zeros(groups).index_add_(0, index_B, values_B)
    counts = values_B.new_zeros(groups).index_add_(0, index_B, torch.ones_like(values_B))
    return sums[index_B], counts[index_B]


def batch_centred(reward_B: Tensor) -> Tensor:
    """R_i - mean_batch(R): REINFORCE's baseline (Williams 1992)."""
    return reward_B - reward_B.mean()


def moving_average(reward_B: Tensor, baseline: float) -> Tensor:
    """R_i - b, b an exponential moving average of earlier batches' mean rewards (Williams 1992)."""
    return reward_B - baseline


def leave_one_out(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """R_i - mean_{j != i}(R_j) within the group (RLOO, Ahmadian 2024)."""
    total_B, count_B = group_sums(reward_B, group_B)
    _need_siblings(count_B, "leave_one_out")
    return reward_B - (total_B - reward_B) / (count_B - 1)


def group_centred(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """R_i - mean_group(R) (Dr. GRPO, Liu 2025)."""
    total_B, count_B = group_sums(reward_B, group_B)
    _need_siblings(count_B, "group_centred")
    return reward_B - total_B / count_B


def group_zscore(reward_B: Tensor, group_B: Tensor, eps: float = EPS) -> Tensor:
    """(R_i - mean) / (std + eps) in the group, ddof 1, and 0 where the group has no spread (GRPO, Shao 2024)."""
    centred_B = group_centred(reward_B, group_B)
    squares_B, count_B = group_sums(centred_B.square(), group_B)
    std_B = (squares_B / (count_B - 1)).sqrt()
    flat_B = group_spread(reward_B, group_B) == 0
    return torch.where(flat_B, torch.zeros_like(reward_B), centred_B / (std_B + eps))


def over_mean(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """(R_i - mean) / mean in the group, 0 where the mean is 0, of rewards >= 0 (MaxRL, Tajwar 2026).

    For rewards of 0 and 1 the score function with it is unbiased for the log-likelihood truncated at order G - 1.
    """
    centred_B = group_centred(reward_B, group_B)
    total_B, count_B = group_sums(reward_B, group_B)
    empty_B = total_B == 0
    return torch.where(empty_B, torch.zeros_like(reward_B), centred_B / (total_B / count_B).masked_fill(empty_B, 1.0))


def decoupled(parts_BK: Tensor, weights: Sequence[float], group_B: Tensor, eps: float = 1e-8) -> Tensor:
    """Each part's z-score in its group, summed by weight, then whitened over the step's rows (GDPO, Liu 2026)."""
    if len(weights) != parts_BK.shape[1]:
        raise ValueError(f"{parts_BK.shape[1]} reward parts and {len(weights)} weights")
    total_B = torch.zeros_like(parts_BK[:, 0])
    for weight, part_B in zip(weights, parts_BK.unbind(1), strict=True):
        total_B = total_B + weight * group_zscore(part_B, group_B)
    return whiten(total_B, torch.ones_like(total_B), eps)


def group_spread(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """max - min of the reward in each row's group."""
    _, index_B = torch.unique(group_B, return_inverse=True)
    groups = int(index_B.max()) + 1 if index_B.numel() else 0
    highest = reward_B.new_full((groups,), -torch.inf).scatter_reduce(0, index_B, reward_B, "amax")
    lowest = reward_B.new_full((groups,), torch.inf).scatter_reduce(0, index_B, reward_B, "amin")
    return (highest - lowest)[index_B]


def win_rate(reward_B: Tensor, opponent_B: Tensor, group_B: Tensor, scale: float = 1.0) -> Tensor:
    """mean_j sigmoid((R_i - R_j) / scale) - 1/2 over the opponents j of the row's group (Nash-MD, Munos 2023).

    Opponents themselves, and rows that met none, get 0.
    """
    opponent_B = opponent_B.bool()
    met_BB = (group_B[:, None] == group_B[None, :]) & ~opponent_B[:, None] & opponent_B[None, :]
    won_BB = torch.sigmoid((reward_B[:, None] - reward_B[None, :]) / scale) - 0.5
    return (met_BB * won_BB).sum(1) / met_BB.sum(1).clamp(min=1)


def gae(
    reward_N: Tensor, value_N: Tensor, lengths_B: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Generalised advantage and return of each action token (Schulman 2016).

    delta_t = r_t + gamma V_{t+1} - V_t,  A_t = sum_l (gamma lambda)^l delta_{t+l},  V_{T+1} = 0,  return = A + V.
    Only action tokens are given, so tokens between two actions pass the next action's value and sum through.
    """
    mask_BT = to_padded(torch.ones_like(reward_N), lengths_B).bool()
    reward_BT, value_BT = to_padded(reward_N, lengths_B), to_padded(value_N, lengths_B)
    advantage_BT = torch.zeros_like(reward_BT)
    next_value_B = reward_BT.new_zeros(reward_BT.shape[0])
    running_B = torch.zeros_like(next_value_B)
    for t in range(reward_BT.shape[1] - 1, -1, -1):
        delta_B = reward_BT[:, t] + gamma * next_value_B - value_BT[:, t]
        running_B = torch.where(mask_BT[:, t], delta_B + gamma * lam * running_B, running_B)
        next_value_B = torch.where(mask_BT[:, t], value_BT[:, t], next_value_B)
        advantage_BT[:, t] = running_B
    advantage_N, _ = from_padded(advantage_BT, mask_BT)
    return advantage_N, advantage_N + value_N


def return_to_go(reward_N: Tensor, lengths_B: Tensor, gamma: float = 1.0) -> Tensor:
    """sum_l gamma^l r_{t+l}: what a token's row still earns (REINFORCE++, Hu 2025); GAE without a critic, lambda 1."""
    advantage_N, _ = gae(reward_N, torch.zeros_like(reward_N), lengths_B, gamma=gamma, lam=1.0)
    return advantage_N


def at_last_token(reward_B: Tensor, lengths_B: Tensor) -> Tensor:
    """The outcome reward on each row's last action token, 0 elsewhere: [B] -> [N]."""
    reward_N = reward_B.new_zeros(int(lengths_B.sum()))
    kept = lengths_B > 0
    return reward_N.index_put((last_tokens(lengths_B)[kept],), reward_B[kept])


def whiten(advantage_N: Tensor, weight_N: Tensor, eps: float = 1e-8) -> Tensor:
    """(A - mean) / sqrt(var + eps) over all counted tokens of the optimizer step; uncounted tokens stay 0.

    Advantages that are all equal become exactly 0: dividing what rounding left of them would train on noise.
    """
    counted_N = weight_N > 0
    seen = advantage_N[counted_N]
    if seen.numel() < 2 or bool(seen.max() == seen.min()):
        return torch.zeros_like(advantage_N)
    centred = seen - seen.mean()
    return torch.zeros_like(advantage_N).masked_scatter(counted_N, centred / (centred.var() + eps).sqrt())


def _need_siblings(count_B: Tensor, name: str) -> None:
    if count_B.numel() and bool((count_B < 2).any()):
        raise ValueError(f"{name}: a group of one has no siblings to compare with")
