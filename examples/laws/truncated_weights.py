"""A policy loss with verl's signature, whose truncated importance weights keep their gradient.

The weight corrects for the engine's numbers: min(pi / sampler, 2). It is a constant; with its gradient the loss learns
to move the weight. verl had this in 2025 (verl#4105). Copy this file to `custom/` and run
`posttrain laws truncated_weights`.
"""

import torch
from torch import Tensor

from posttrain.losses import PaddedBatch, PaddedLoss


def compute_policy_loss(
    old_log_prob: Tensor, log_prob: Tensor, advantages: Tensor, response_mask: Tensor, rollout_is_weights: Tensor
) -> Tensor:
    """Return the clipped surrogate times the weights, summed over tokens."""
    ratio = torch.exp((log_prob - old_log_prob).clamp(-20, 20))
    losses = torch.max(-advantages * ratio, -advantages * ratio.clamp(0.8, 1.2)) * rollout_is_weights
    return (losses * response_mask).sum()


def weights(batch: PaddedBatch) -> Tensor:
    """Return the truncated importance weights."""
    return torch.exp((batch.logp - batch.sampler_logp).clamp(-20, 20)).clamp(max=2.0)


@PaddedLoss
def wrong(batch: PaddedBatch) -> Tensor:
    """Differentiate the weights as well."""
    loss = compute_policy_loss(batch.old_logp, batch.logp, batch.advantage, batch.mask, weights(batch))
    return loss / batch.step_tokens * batch.ranks


@PaddedLoss
def right(batch: PaddedBatch) -> Tensor:
    """Take the weights as constants."""
    loss = compute_policy_loss(batch.old_logp, batch.logp, batch.advantage, batch.mask, weights(batch).detach())
    return loss / batch.step_tokens * batch.ranks
