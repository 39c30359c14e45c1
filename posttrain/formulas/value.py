"""The critic's loss."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_value(value: Tensor, old_value: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """0.5 max((V - R)^2, (clip(V, V_old - c, V_old + c) - R)^2) (PPO's value loss); no clip when c is None."""
    loss = (value - returns).square()
    if clip is not None:
        near = old_value + (value - old_value).clamp(-clip, clip)
        loss = torch.maximum(loss, (near - returns).square())
    return 0.5 * loss
