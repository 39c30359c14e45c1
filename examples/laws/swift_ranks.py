"""A GRPO loss divided by the tokens of all G processes, whose gradients are then averaged (as in ms-swift#10117).

Averaged over G processes, a sum that was divided by the tokens of all of them is 1/G of what it should be. The loss
that is shown is right, since it is gathered by a sum. Copy this file to `custom/` and run `posttrain laws swift_ranks`.
"""

from typing import Any

import torch
from torch import Tensor

from posttrain.losses import PaddedBatch, PaddedLoss


def compute_loss(inputs: dict[str, Any], per_token_logps: Tensor, num_items_in_batch: float) -> Tensor:
    """Return the clipped surrogate, summed over this process's tokens."""
    ratio = torch.exp(per_token_logps - inputs["old_per_token_logps"])
    advantages, mask = inputs["advantages"], inputs["completion_mask"]
    losses = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
    return (losses * mask).sum() / num_items_in_batch


def inputs_of(batch: PaddedBatch) -> dict[str, Any]:
    """Return a batch by the trainer's names."""
    return {
        "old_per_token_logps": batch.old_logp,
        "advantages": batch.advantage,
        "completion_mask": batch.mask,
    }


@PaddedLoss
def wrong(batch: PaddedBatch) -> Tensor:
    """Forget that gradients are averaged."""
    return compute_loss(inputs_of(batch), batch.logp, batch.step_tokens)


@PaddedLoss
def right(batch: PaddedBatch) -> Tensor:
    """Divide by this process's share of the tokens."""
    return compute_loss(inputs_of(batch), batch.logp, batch.step_tokens / batch.ranks)
