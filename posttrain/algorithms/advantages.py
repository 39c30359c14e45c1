"""Advantages, as formulas and as a table with the options of each; no gradient flows through them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import State
from posttrain.errors import ParamsError
from posttrain.formulas.ragged import Ragged, from_padded, last_tokens, to_padded
from posttrain.params.choices import Options

EPS = 1e-4


def group_sums(values_B: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor]:
    """(sum, count) over each row's group, repeated on the rows; rows with equal numbers are a group, in any order."""
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
    _check_group_size(count_B, "leave_one_out")
    return reward_B - (total_B - reward_B) / (count_B - 1)


def group_centred(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """R_i - mean_group(R) (Dr. GRPO, Liu 2025)."""
    total_B, count_B = group_sums(reward_B, group_B)
    _check_group_size(count_B, "group_centred")
    return reward_B - total_B / count_B


def group_zscore(reward_B: Tensor, group_B: Tensor, eps: float = EPS) -> Tensor:
    """(R_i - mean) / (std + eps) in the group, ddof 1, and 0 where its rewards are all equal (GRPO, Shao 2024)."""
    centred_B = group_centred(reward_B, group_B)
    squares_B, count_B = group_sums(centred_B.square(), group_B)
    std_B = (squares_B / (count_B - 1)).sqrt()
    flat_B = group_range(reward_B, group_B) == 0
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


def group_range(reward_B: Tensor, group_B: Tensor) -> Tensor:
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
    The columns hold action tokens only, so tokens between two actions (of a user or a tool) are skipped.
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
    """sum_l gamma^l r_{t+l}: the return from a token on (REINFORCE++, Hu 2025); GAE without a critic, lambda 1."""
    advantage_N, _ = gae(reward_N, torch.zeros_like(reward_N), lengths_B, gamma=gamma, lam=1.0)
    return advantage_N


def at_last_token(reward_B: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the outcome reward on each row's last action token, 0 elsewhere: [B] -> [N]."""
    reward_N = reward_B.new_zeros(int(lengths_B.sum()))
    kept = lengths_B > 0
    return reward_N.index_put((last_tokens(lengths_B)[kept],), reward_B[kept])


def whiten(advantage_N: Tensor, weight_N: Tensor, eps: float = 1e-8) -> Tensor:
    """(A - mean) / sqrt(var + eps) over all counted tokens of the optimizer step; uncounted tokens stay 0.

    Advantages that are all equal become exactly 0: dividing their rounding errors would train on noise.
    """
    counted_N = weight_N > 0
    values = advantage_N[counted_N]
    if values.numel() < 2 or bool(values.max() == values.min()):
        return torch.zeros_like(advantage_N)
    centred = values - values.mean()
    return torch.zeros_like(advantage_N).masked_scatter(counted_N, centred / (centred.var() + eps).sqrt())


def _check_group_size(count_B: Tensor, name: str) -> None:
    if count_B.numel() and bool((count_B < 2).any()):
        raise ValueError(f"{name}: a group of one sample has nothing to compare with")


@dataclass(frozen=True)
class Rewards:
    """The inputs of an advantage: a step's outcome rewards, and the KL penalty in the reward."""

    step: Ragged
    reward_B: Tensor
    kl_penalty_N: Tensor
    """Of each token; 0 where the KL is not in the reward."""
    kl_penalty_B: Tensor
    """Of each row."""
    state: State
    weights: tuple[float, ...]
    """The weights of the columns of `reward_parts`."""

    @property
    def penalised(self) -> Tensor:
        """The outcome rewards less the KL penalty."""
        return self.reward_B - self.kl_penalty_B


@dataclass(frozen=True)
class Advantage:
    """An entry of the table: (rewards, options) -> the token columns `advantage` and, for a critic, `return`."""

    options: type[Options]
    columns: Callable[[Rewards, Any], dict[str, Tensor]]
    formula: str
    grouped: bool = False
    """Whether it compares the samples of a prompt."""
    valued: bool = False
    """Whether it needs a critic."""
    token_rewards: bool = False
    """Whether rewards, and so KL penalties, are per token."""
    per_token: bool = False
    """Whether the tokens of a row have different advantages."""
    nonnegative: bool = False
    """Whether rewards have to be 0 or more."""
    by_part: bool = False
    """Whether it compares each reward by itself."""


class WinRateOptions(Options):
    """The opponents of a sample, and the probability of winning."""

    scale: float = Field(0.25, gt=0, description="P(i beats j) = sigmoid((R_i - R_j) / scale)")
    mixture: float = Field(
        0.25, ge=0, lt=1, description="the reference's weight in the geometric mixture that opponents are sampled from"
    )


class MovingAverageOptions(Options):
    """The memory of the baseline."""

    decay: float = Field(0.9, ge=0, lt=1, description="decay of the moving average per batch")


class ReturnOptions(Options):
    """The discount."""

    gamma: float = Field(1.0, gt=0, le=1, description="discount")


class CriticOptions(Options):
    """The critic's loss, 0.5 max((V - R)^2, (clip(V) - R)^2)."""

    value_coef: float = Field(1.0, gt=0, description="weight of the critic's loss")
    value_clip: float | None = Field(0.2, gt=0, description="clip of the critic's loss; null for none")


class GaeOptions(CriticOptions):
    """The discounts of generalised advantages, and the critic's loss."""

    gamma: float = Field(1.0, gt=0, le=1, description="discount")
    lam: float = Field(0.95, ge=0, le=1, description="lambda")


def _per_row(compare: Callable[[Rewards, Any], Tensor]) -> Callable[[Rewards, Any], dict[str, Tensor]]:
    """Return one advantage per row, on each of its tokens."""
    return lambda rewards, options: {"advantage": rewards.step.repeat_to_tokens(compare(rewards, options))}


def _grouped(compare: Callable[[Tensor, Tensor], Tensor], formula: str) -> Advantage:
    """Return an advantage that compares the samples of a prompt."""
    columns = _per_row(lambda rewards, _: compare(rewards.penalised, rewards.step.rows["group"]))
    return Advantage(Options, columns, formula, grouped=True)


def _moving_average(rewards: Rewards, options: MovingAverageOptions) -> Tensor:  # noqa: ARG001
    return moving_average(rewards.penalised, baseline(rewards.state, rewards.penalised))


def _win_rate(rewards: Rewards, options: WinRateOptions) -> Tensor:
    """Wins by the rewards alone, less the KL penalty."""
    rows = rewards.step.rows
    return win_rate(rewards.reward_B, rows["opponent"], rows["group"], options.scale) - rewards.kl_penalty_B


def _over_mean(rewards: Rewards, _: Options) -> Tensor:
    if bool((rewards.reward_B < 0).any()):
        what = f"advantage 'maxrl' divides by a group's mean reward, and a reward is {float(rewards.reward_B.min()):g}"
        fix = "Use rewards of 0 or more, or advantage group_zscore"
        raise ParamsError(what=what, where="reward", fix=fix)
    return over_mean(rewards.reward_B, rewards.step.rows["group"])


def _decoupled(rewards: Rewards, _: Options) -> Tensor:
    rows = rewards.step.rows
    return decoupled(rows["reward_parts"].to(rewards.reward_B.dtype), rewards.weights, rows["group"])


def _outcome_value(rewards: Rewards, options: CriticOptions) -> dict[str, Tensor]:  # noqa: ARG001
    returns = rewards.step.repeat_to_tokens(rewards.penalised)
    return {"advantage": returns - rewards.step.tokens["old_value"], "return": returns}


def _return_to_go(rewards: Rewards, options: ReturnOptions) -> dict[str, Tensor]:
    return {"advantage": return_to_go(_by_token(rewards), rewards.step.lengths_B, options.gamma)}


def _gae(rewards: Rewards, options: GaeOptions) -> dict[str, Tensor]:
    reward_N = _by_token(rewards)
    value_N = rewards.step.tokens["old_value"].to(reward_N.dtype)
    lengths_B = rewards.step.lengths_B
    advantage, returns = gae(reward_N, value_N, lengths_B, gamma=options.gamma, lam=options.lam)
    return {"advantage": advantage, "return": returns}


def _by_token(rewards: Rewards) -> Tensor:
    """Return the reward on the last token, less what earlier turns earned on theirs, less each token's KL penalty."""
    step, reward_B = rewards.step, rewards.reward_B
    earned_N = step.tokens.get("turn_reward")
    if earned_N is None:
        return at_last_token(reward_B, step.lengths_B) - rewards.kl_penalty_N
    earned_N = earned_N.to(reward_B.dtype)
    return at_last_token(reward_B - step.sum_rows(earned_N), step.lengths_B) + earned_N - rewards.kl_penalty_N


def baseline(state: State, reward_B: Tensor) -> float:
    """Return the bias-corrected moving average of earlier batches' rewards; the first batch is its own baseline."""
    if state["baseline_weight"] == 0:
        return float(reward_B.mean())
    return state["baseline"] / state["baseline_weight"]


ADVANTAGES: dict[str, Advantage] = {
    "group_zscore": _grouped(group_zscore, "(R - mean) / (std + 1e-4) in the group, 0 where its rewards are equal"),
    "group_centred": _grouped(group_centred, "R - mean of the group"),
    "leave_one_out": _grouped(leave_one_out, "R - mean of the siblings"),
    "maxrl": Advantage(
        Options,
        _per_row(_over_mean),
        "(R - mean) / mean of the group, 0 where the mean is 0; rewards >= 0",
        grouped=True,
        nonnegative=True,
    ),
    "gdpo": Advantage(
        Options,
        _per_row(_decoupled),
        "z-score of each reward part in its group, weighted sum, whitened over the step's rows",
        grouped=True,
        by_part=True,
    ),
    "batch_centred": Advantage(
        Options, _per_row(lambda rewards, _: batch_centred(rewards.penalised)), "R - mean of the batch"
    ),
    "moving_average": Advantage(
        MovingAverageOptions, _per_row(_moving_average), "R - moving average of earlier batches' means"
    ),
    "win_rate": Advantage(
        WinRateOptions, _per_row(_win_rate), "mean_j sigmoid((R_i - R_j) / scale) - 1/2 over opponents j", grouped=True
    ),
    "return_to_go": Advantage(
        ReturnOptions, _return_to_go, "sum_l gamma^l r_{t+l}", token_rewards=True, per_token=True
    ),
    "gae": Advantage(
        GaeOptions,
        _gae,
        "sum_l (gamma lam)^l (r + gamma V' - V)_{t+l}",
        valued=True,
        token_rewards=True,
        per_token=True,
    ),
    "outcome_value": Advantage(CriticOptions, _outcome_value, "R - V_t", valued=True, per_token=True),
}
