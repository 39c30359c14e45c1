"""A GRPO loss with TRL's signature, whose denominator counts the generation batch (trl#6024).

TRL samples for `steps_per_generation` micro-batches at once, and an optimizer step takes
`gradient_accumulation_steps` of them. The loss was divided by the tokens of the former; where the two differ the
gradient is scaled by their ratio. Copy this file to `custom/` and run `posttrain laws trl_accumulation`.
"""

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from posttrain.losses import PaddedBatch, PaddedLoss

STEPS_PER_GENERATION = 4


class Trainer:
    """What is needed of TRL's trainer."""

    epsilon_low = epsilon_high = 0.2
    beta = 0.04
    loss_type = "dapo"

    def __init__(self, batch: PaddedBatch) -> None:
        self.batch = batch
        self.accelerator = SimpleNamespace(num_processes=batch.ranks)

    def _get_per_token_logps_and_entropies(self, *_: Any) -> tuple[Tensor, None]:
        return self.batch.logp, None

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        logp, _ = self._get_per_token_logps_and_entropies(model)
        mask = inputs["completion_mask"]
        ratio = torch.exp(logp - inputs["old_per_token_logps"])
        clipped = torch.clamp(ratio, 1 - self.epsilon_low, 1 + self.epsilon_high)
        advantages = inputs["advantages"]
        loss = -torch.min(ratio * advantages, clipped * advantages)
        away = inputs["ref_per_token_logps"] - logp
        loss = loss + self.beta * (torch.exp(away) - away - 1)
        return (loss * mask).sum() / (inputs["num_items_in_batch"] / self.accelerator.num_processes)


def computed(batch: PaddedBatch, tokens: float) -> Tensor:
    """Adapt the loss: the inputs by TRL's names."""
    inputs = {
        "completion_mask": batch.mask,
        "old_per_token_logps": batch.old_logp,
        "ref_per_token_logps": batch.ref_logp,
        "advantages": batch.advantage,
        "num_items_in_batch": tokens,
    }
    return Trainer(batch)._compute_loss(None, inputs)


@PaddedLoss
def wrong(batch: PaddedBatch) -> Tensor:
    """Count the tokens of the generation batch."""
    return computed(batch, batch.step_tokens * STEPS_PER_GENERATION / batch.micro_batches)


@PaddedLoss
def right(batch: PaddedBatch) -> Tensor:
    """Count the tokens of the optimizer step."""
    return computed(batch, batch.step_tokens)
