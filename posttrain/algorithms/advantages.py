"""The interface of advantages, and functions that several advantages share. No gradient flows through them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import State
from posttrain.formulas.ragged import Ragged, last_tokens
from posttrain.settings.choices import Options
from posttrain.settings.listing import Listing, instance


def group_sums(values_B: Tensor, group_B: Tensor) -> tuple[Tensor, Tensor]:
    """Return (sum, count) over each row's group, repeated on the rows. Rows with equal numbers form a group."""
    _, index_B = torch.unique(group_B, return_inverse=True)
    groups = int(index_B.max()) + 1 if index_B.numel() else 0
    sums = values_B.new_zeros(groups).index_add_(0, index_B, values_B)
    counts = values_B.new_zeros(groups).index_add_(0, index_B, torch.ones_like(values_B))
    return sums[index_B], counts[index_B]


def group_range(reward_B: Tensor, group_B: Tensor) -> Tensor:
    """Return max - min of the reward in each row's group."""
    _, index_B = torch.unique(group_B, return_inverse=True)
    groups = int(index_B.max()) + 1 if index_B.numel() else 0
    highest = reward_B.new_full((groups,), -torch.inf).scatter_reduce(0, index_B, reward_B, "amax")
    lowest = reward_B.new_full((groups,), torch.inf).scatter_reduce(0, index_B, reward_B, "amin")
    return (highest - lowest)[index_B]


def at_last_token(reward_B: Tensor, lengths_B: Tensor) -> Tensor:
    """Return the outcome reward on each row's last action token, 0 elsewhere: [B] -> [N]."""
    reward_N = reward_B.new_zeros(int(lengths_B.sum()))
    has_tokens_B = lengths_B > 0
    return reward_N.index_put((last_tokens(lengths_B)[has_tokens_B],), reward_B[has_tokens_B])


def whiten(advantage_N: Tensor, weight_N: Tensor, eps: float = 1e-8) -> Tensor:
    """Return (A - mean) / sqrt(var + eps) over all counted tokens of the step. Uncounted tokens stay 0.

    If all advantages are equal, the result is exactly 0, because dividing rounding errors would train on noise. The
    same applies to advantages that differ from the mean only by rounding, whose sign would decide whether they are
    clipped.
    """
    counted_N = weight_N > 0
    values = advantage_N[counted_N]
    if values.numel() < 2 or bool(values.max() == values.min()):
        return torch.zeros_like(advantage_N)
    centred = values - values.mean()
    rounding = 4 * torch.finfo(values.dtype).eps * values.abs().max()
    centred = centred.masked_fill(centred.abs() <= rounding, 0.0)
    return torch.zeros_like(advantage_N).masked_scatter(counted_N, centred / (centred.var() + eps).sqrt())


def check_group_size(count_B: Tensor, name: str) -> None:
    """Reject groups with only one sample."""
    if count_B.numel() and bool((count_B < 2).any()):
        raise ValueError(f"{name}: each group needs at least two samples to compare")


@dataclass(frozen=True)
class Rewards:
    """The inputs of an advantage: a step's outcome rewards, and the KL penalty in the reward."""

    step: Ragged
    reward_B: Tensor
    kl_penalty_N: Tensor
    """KL penalty per token; 0 if the KL is not in the reward."""
    kl_penalty_B: Tensor
    """KL penalty per row."""
    state: State

    @property
    def penalised(self) -> Tensor:
        """The outcome rewards minus the KL penalty."""
        return self.reward_B - self.kl_penalty_B


@dataclass(frozen=True)
class Advantage:
    """An entry of the table: (rewards, options) -> the token columns `advantage` and, with a critic, `return`."""

    options: type[Options]
    columns: Callable[[Rewards, Any], dict[str, Tensor]]
    formula: str
    grouped: bool = False
    """True if it compares the samples of a prompt."""
    valued: bool = False
    """True if it needs a critic."""
    token_rewards: bool = False
    """True if rewards, and so KL penalties, are per token."""
    per_token: bool = False
    """True if the tokens of a row have different advantages."""
    nonnegative: bool = False
    """True if rewards must be 0 or more."""
    smallest_group: Callable[[Any], int] = lambda _: 2
    """(options) -> the smallest number of samples per prompt for which not every advantage is 0."""
    by_length: bool = False
    """True if it weights samples by their numbers of tokens."""
    by_part: bool = False
    """True if it compares each reward separately."""


class WinRateOptions(Options):
    """Options for a sample's opponents and its probability of winning."""

    scale: float = Field(0.25, gt=0, description="P(i beats j) = sigmoid((R_i - R_j) / scale)")
    mixture: float = Field(
        0.25, ge=0, lt=1, description="the reference's weight in the geometric mixture that opponents are sampled from"
    )


class MovingAverageOptions(Options):
    """The decay of the baseline."""

    decay: float = Field(0.9, ge=0, lt=1, description="decay of the moving average per batch")


class CriticOptions(Options):
    """The critic's loss, 0.5 max((V - R)^2, (clip(V) - R)^2)."""

    value_coef: float = Field(1.0, gt=0, description="weight of the critic's loss")
    value_clip: float | None = Field(0.2, gt=0, description="clip of the critic's loss; null for none")


def per_row(compare: Callable[[Rewards, Any], Tensor]) -> Callable[[Rewards, Any], dict[str, Tensor]]:
    """Return one advantage per row, repeated on each of its tokens."""
    return lambda rewards, options: {"advantage": rewards.step.repeat_to_tokens(compare(rewards, options))}


def grouped(compare: Callable[[Tensor, Tensor], Tensor], formula: str) -> Advantage:
    """Return an advantage that compares the samples of a prompt."""
    columns = per_row(lambda rewards, _: compare(rewards.penalised, rewards.step.rows["group"]))
    return Advantage(Options, columns, formula, grouped=True)


def by_token(rewards: Rewards) -> Tensor:
    """Return the last token's reward, minus rewards of earlier turns on their tokens, minus each token's KL penalty."""
    step, reward_B = rewards.step, rewards.reward_B
    earned_N = step.tokens.get("turn_reward")
    if earned_N is None:
        return at_last_token(reward_B, step.lengths_B) - rewards.kl_penalty_N
    earned_N = earned_N.to(reward_B.dtype)
    return at_last_token(reward_B - step.sum_rows(earned_N), step.lengths_B) + earned_N - rewards.kl_penalty_N


def baseline(state: State, reward_B: Tensor) -> float:
    """Return the bias-corrected moving average of earlier batches' rewards. The first batch is its own baseline."""
    if state["baseline_weight"] == 0:
        return float(reward_B.mean())
    return state["baseline"] / state["baseline_weight"]


ADVANTAGES: Listing[Advantage] = Listing(
    "posttrain.algorithms.policy", "ADVANTAGES", group="algorithms.advantages", adopt=instance(Advantage)
)
