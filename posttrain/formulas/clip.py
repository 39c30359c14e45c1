"""Surrogates: what a token's ratio and advantage are turned into before they are summed (to maximise)."""

from __future__ import annotations

import torch
from torch import Tensor


def reinforce(logp: Tensor, advantage: Tensor) -> Tensor:
    """A logp: the plain policy gradient (Williams 1992)."""
    return advantage * logp


def importance(ratio: Tensor, advantage: Tensor) -> Tensor:
    """r A: the importance-weighted objective."""
    return ratio * advantage


def ppo_clip(ratio: Tensor, advantage: Tensor, low: float | None, high: float) -> Tensor:
    """min(r A, clip(r, 1 - low, 1 + high) A) (PPO, Schulman 2017)."""
    return torch.minimum(ratio * advantage, ratio.clamp(_lowest(low), 1 + high) * advantage)


def cispo(ratio: Tensor, logp: Tensor, advantage: Tensor, low: float | None, high: float) -> Tensor:
    """sg(clip(r, 1 - low, 1 + high)) A logp: every token keeps its gradient (CISPO, MiniMax 2025)."""
    return ratio.detach().clamp(_lowest(low), 1 + high) * advantage * logp


def outside(ratio: Tensor, advantage: Tensor, low: float | None, high: float) -> Tensor:
    """Whether PPO's clip cuts a token's gradient: over the top with A > 0, or under the bottom with A < 0."""
    return ((ratio > 1 + high) & (advantage > 0)) | ((ratio < _lowest(low)) & (advantage < 0))


def beyond(ratio: Tensor, low: float | None, high: float) -> Tensor:
    """Whether CISPO's weight is not the ratio itself."""
    return (ratio > 1 + high) | (ratio < _lowest(low))


def _lowest(low: float | None) -> float:
    return 0.0 if low is None else 1 - low
