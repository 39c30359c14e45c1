"""The table of advantages: how a sample's reward is compared, and the options of each way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import State
from posttrain.choices import Options
from posttrain.errors import ParamsError
from posttrain.formulas.advantage import at_last_token, batch_centred, decoupled, gae, group_centred, group_zscore, leave_one_out, moving_average, over_mean, return_to_go, win_rate
from posttrain.formulas.ragged import Ragged


@dataclass(frozen=True)
class Rewards:
    """What advantages are made of: a step's outcome rewards, and what moving costs where the reward is charged."""

    step: Ragged
    reward_B: Tensor
    charge_N: Tensor
    charge_B: Tensor
    state: State
    weights: tuple[float, ...]
    """Of the columns of `reward_parts`."""

    @property
    def compared(self) -> Tensor:
        """The rewards less the charge."""
        return self.reward_B - self.charge_B


@dataclass(frozen=True)
class Advantage:
    """One way to compare: (rewards, options) -> the token columns `advantage` and, for a critic, `return`."""

    options: type[Options]
    columns: Callable[[Rewards, Any], dict[str, Tensor]]
    formula: str
    grouped: bool = False
    """Whether it compares siblings."""
    valued: bool = False
    """Whether it needs a critic."""
    token_rewards: bool = False
    """Whether rewards, and so charges, come token by token."""
    per_token: bool = False
    """Whether it differs from token to token of a row."""
    nonnegative: bool = False
    """Whether rewards have to be 0 or more."""
    by_part: bool = False
    """Whether it compares the parts of the reward."""


class WinRateOptions(Options):
    """Whom a sample is compared with, and how."""

    scale: float = Field(0.25, gt=0, description="P(i beats j) = sigmoid((R_i - R_j) / scale)")
    mixture: float = Field(
        0.25, ge=0, lt=1, description="the reference's share in the geometric mixture that opponents come from"
    )


class MovingAverageOptions(Options):
    """The memory of the baseline."""

    decay: float = Field(0.9, ge=0, lt=1, description="share of the moving average that a batch leaves in place")


class ReturnOptions(Options):
    """What a later reward is worth."""

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
    """One advantage per row, on each of its tokens."""
    return lambda rewards, options: {"advantage": rewards.step.spread(compare(rewards, options))}


def _grouped(compare: Callable[[Tensor, Tensor], Tensor], formula: str) -> Advantage:
    """A comparison with the siblings' rewards."""
    columns = _per_row(lambda rewards, _: compare(rewards.compared, rewards.step.rows["group"]))
    return Advantage(Options, columns, formula, grouped=True)


def _moving_average(rewards: Rewards, options: MovingAverageOptions) -> Tensor:  # noqa: ARG001
    return moving_average(rewards.compared, baseline(rewards.state, rewards.compared))


def _win_rate(rewards: Rewards, options: WinRateOptions) -> Tensor:
    """The judge sees the rewards alone; the price of moving comes after."""
    rows = rewards.step.rows
    return win_rate(rewards.reward_B, rows["opponent"], rows["group"], options.scale) - rewards.charge_B


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
    returns = rewards.step.spread(rewards.compared)
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
    """The outcome on the last token, less the charge of each token."""
    return at_last_token(rewards.reward_B, rewards.step.lengths_B) - rewards.charge_N


def baseline(state: State, reward_B: Tensor) -> float:
    """The mean of earlier batches' rewards, without the start's pull to 0; the first batch is its own baseline."""
    if state["baseline_weight"] == 0:
        return float(reward_B.mean())
    return state["baseline"] / state["baseline_weight"]


ADVANTAGES: dict[str, Advantage] = {
    "group_zscore": _grouped(group_zscore, "(R - mean) / (std + 1e-4) in the group, 0 where its rewards agree"),
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
        Options, _per_row(lambda rewards, _: batch_centred(rewards.compared)), "R - mean of the batch"
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
