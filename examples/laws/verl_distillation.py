"""A distillation loss with verl's signature, whose mean is over the wrong tokens (as in verl#7225).

The sum is over the response's tokens and the mean over all positions of the padded tensor, so a batch with one long row
counts less. Copy this file to `custom/` and run `posttrain laws verl_distillation`.
"""

from torch import Tensor

from posttrain.losses import PaddedBatch, PaddedLoss


def distillation_losses(student_log_probs: Tensor, teacher_log_probs: Tensor) -> Tensor:
    """Return k3, the estimate of KL(student, teacher) at each sampled token."""
    away = teacher_log_probs - student_log_probs
    return away.clamp(max=20).exp() - away - 1


@PaddedLoss
def wrong(batch: PaddedBatch) -> Tensor:
    """Divide by the positions of the padded tensor."""
    losses = distillation_losses(batch.logp, batch.teacher_logp) * batch.mask
    return losses.mean() / batch.micro_batches


@PaddedLoss
def right(batch: PaddedBatch) -> Tensor:
    """Divide by the trained tokens of the step."""
    losses = distillation_losses(batch.logp, batch.teacher_logp) * batch.mask
    return losses.sum() / batch.step_tokens * batch.ranks
