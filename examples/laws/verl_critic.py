"""A critic's loss with verl's signature, normalised by what one micro-batch of one process sees (verl#6957).

The gradients of micro-batches add up, so a mean over each makes the gradient as many times too large as there are
micro-batches, and unequal lengths weigh unequally over processes. Copy this file to `custom/` and run
`posttrain laws verl_critic`.
"""

from typing import Any

import torch
from torch import Tensor

from posttrain.losses import PaddedBatch, PaddedLoss


def agg_loss(loss_mat: Tensor, loss_mask: Tensor, dp_size: int = 1, batch_num_tokens: int | None = None) -> Tensor:
    """Return the mean over tokens; of the whole step if its number of tokens is given."""
    tokens = loss_mask.sum() if batch_num_tokens is None else batch_num_tokens
    return (loss_mat * loss_mask).sum() / tokens * dp_size


def compute_value_loss(
    vpreds: Tensor, returns: Tensor, values: Tensor, response_mask: Tensor, cliprange_value: float, **step: Any
) -> Tensor:
    """Return PPO's clipped loss of the values."""
    clipped = torch.clamp(vpreds, values - cliprange_value, values + cliprange_value)
    losses = torch.max((vpreds - returns) ** 2, (clipped - returns) ** 2)
    return 0.5 * agg_loss(losses, response_mask, **step)


@PaddedLoss
def wrong(batch: PaddedBatch) -> Tensor:
    """Forward nothing of the step."""
    return compute_value_loss(batch.value, batch.returns, batch.old_value, batch.mask, 0.5)


@PaddedLoss
def right(batch: PaddedBatch) -> Tensor:
    """Forward the step's tokens and the number of processes, over which gradients are averaged."""
    step = {"dp_size": batch.ranks, "batch_num_tokens": batch.step_tokens}
    return compute_value_loss(batch.value, batch.returns, batch.old_value, batch.mask, 0.5, **step)
