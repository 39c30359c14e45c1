"""Dual clip: PPO's clip, and a floor for bad samples that have become much likelier."""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from posttrain.algorithms.objective import AlgorithmRow
from posttrain.algorithms.policy.ppo import ClipOptions, outside, ppo_clip
from posttrain.algorithms.surrogate import Surrogate, Tokens


class DualClipOptions(ClipOptions):
    """The floor."""

    floor: float = Field(3.0, gt=1, description="for A < 0, the term is at least floor * A")


def dual_clip(tokens: Tokens, options: DualClipOptions) -> Tensor:
    """max(min(r A, clip(r) A), c A) where A < 0, else min(r A, clip(r) A) (Ye 2019)."""
    held = ppo_clip(tokens.ratio, tokens.advantage, options.low, options.high)
    return torch.where(tokens.advantage < 0, torch.maximum(held, options.floor * tokens.advantage), held)


def clipped(tokens: Tokens, options: DualClipOptions) -> Tensor:
    """Tell whether a token has lost its gradient."""
    fallen = (tokens.ratio > options.floor) & (tokens.advantage < 0)
    return outside(tokens.ratio, tokens.advantage, options.low, options.high) | fallen


FORMULA = "max(min(r A, clip(r, 1 - low, 1 + high) A), floor A) where A < 0"
SURROGATES = {"dual_clip": Surrogate(DualClipOptions, dual_clip, FORMULA, clipped=clipped)}
ROWS = {
    "dual_clip": AlgorithmRow(
        "Ye 2019, arXiv:1912.09729",
        "-mean_i mean_t max(min(r A, clip(r) A), 3 A) where A < 0, A = (R - mean) / (std + eps)",
        {"surrogate": "dual_clip"},
    )
}
