"""PPO: the clipped ratio with a critic's generalised advantages; or a KL penalty instead of the clip."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from pydantic import Field, field_validator
from torch import Tensor

from posttrain.algorithms.advantages import Advantage, CriticOptions, Rewards, by_token
from posttrain.algorithms.objective import AlgorithmRow, Moving
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.formulas.ragged import from_padded, to_padded

CLIP = "ppo_clip"
"""The default surrogate."""


class UpperEdge(Moving):
    """An upper bound of the ratio, and the final values of scheduled bounds."""

    moves: ClassVar[Mapping[str, str]] = {"low": "low_end", "high": "high_end"}
    high: float = Field(0.2, description="upper bound of the ratio: 1 + high")
    low_end: float | None = Field(None, gt=0, le=1, description="low changes linearly to this value; null: constant")
    high_end: float | None = Field(None, description="high changes linearly to this value; null: constant")

    @field_validator("high", "high_end")
    @classmethod
    def _counted_from_1(cls, high: float | None) -> float | None:
        if high is not None and high <= 0:
            raise ValueError(
                f"high = {high:g} puts the edge 1 + high at {1 + high:g}, so even samples of the current policy "
                f"(ratio 1) would be clipped. Use a number above 0: it is counted from 1"
            )
        return high


class ClipOptions(UpperEdge):
    """Both bounds. With only the upper bound, the ratio could fall without limit if A < 0."""

    low: float = Field(0.2, gt=0, le=1, description="lower bound of the ratio: 1 - low")


class GaeOptions(CriticOptions):
    """The discount factors of generalised advantages, and the critic's loss."""

    gamma: float = Field(1.0, gt=0, le=1, description="discount factor")
    lam: float = Field(0.95, ge=0, le=1, description="lambda of the advantages")
    value_lam: float | None = Field(
        None, ge=0, le=1, description="separate lambda of the critic's returns; null: lam (VAPO: 1)"
    )


def ppo_clip(ratio: Tensor, advantage: Tensor, low: float | None, high: float) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A) (Schulman 2017)."""
    return torch.minimum(ratio * advantage, ratio.clamp(lowest(low), 1 + high) * advantage)


def outside(ratio: Tensor, advantage: Tensor, low: float | None, high: float) -> Tensor:
    """Tell whether the clip removes a token's gradient: r > 1 + high with A > 0, or r < 1 - low with A < 0."""
    return ((ratio > 1 + high) & (advantage > 0)) | ((ratio < lowest(low)) & (advantage < 0))


def lowest(low: float | None) -> float:
    """Return the lower bound of a ratio."""
    return 0.0 if low is None else 1 - low


def term(tokens: Tokens, options: ClipOptions) -> Tensor:
    """Return the clipped objective of each token."""
    return ppo_clip(tokens.ratio, tokens.advantage, options.low, options.high)


def clipped(tokens: Tokens, options: ClipOptions) -> Tensor:
    """Tell whether a token has lost its gradient."""
    return outside(tokens.ratio, tokens.advantage, options.low, options.high)


def gae(
    reward_N: Tensor, value_N: Tensor, lengths_B: Tensor, gamma: float = 1.0, lam: float = 0.95
) -> tuple[Tensor, Tensor]:
    """Return generalised advantage and return of each action token (Schulman 2016).

    delta_t = r_t + gamma V_{t+1} - V_t,  A_t = sum_l (gamma lambda)^l delta_{t+l},  V_{T+1} = 0,  return = A + V. The
    columns contain only action tokens, so tokens between two actions (from a user or a tool) are skipped.
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


def _gae(rewards: Rewards, options: GaeOptions) -> dict[str, Tensor]:
    reward_N = by_token(rewards)
    value_N = rewards.step.tokens["old_value"].to(reward_N.dtype)
    lengths_B = rewards.step.lengths_B
    advantage, returns = gae(reward_N, value_N, lengths_B, gamma=options.gamma, lam=options.lam)
    if options.value_lam is not None:
        _, returns = gae(reward_N, value_N, lengths_B, gamma=options.gamma, lam=options.value_lam)
    return {"advantage": advantage, "return": returns}


def _outcome_value(rewards: Rewards, _: CriticOptions) -> dict[str, Tensor]:
    returns = rewards.step.repeat_to_tokens(rewards.penalised)
    return {"advantage": returns - rewards.step.tokens["old_value"], "return": returns}


SURROGATES = {
    "ppo_clip": Surrogate(ClipOptions, term, "min(r A, clip(r, 1 - low, 1 + high) A)", clipped=clipped),
}
ADVANTAGES = {
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
ROWS = {
    "ppo": AlgorithmRow(
        "Schulman 2017, arXiv:1707.06347",
        "-mean_tokens min(r A, clip(r) A), A = gae, critic 0.5 max((V - R)^2, (clip(V) - R)^2)",
        {
            "advantage": "gae",
            "aggregation": "token_mean",
            "whiten": True,
            "kl": {"type": "reward_token", "estimator": "k1", "beta": 0.05},
        },
    ),
    "ppo_penalty": AlgorithmRow(
        "Schulman 2017, arXiv:1707.06347, section 4",
        "-mean_tokens [r A - beta KL(old || new)], A = gae, beta halved or doubled towards the target",
        {
            "advantage": "gae",
            "surrogate": "importance",
            "aggregation": "token_mean",
            "whiten": True,
            "penalty": "sampled",
        },
    ),
}
