"""Wrong losses, one for each kind of mistake, and the law that finds each; the right ones keep all laws."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posttrain.laws.own import SHAPES, worst
from posttrain.laws.padded import PADDED_LAWS
from posttrain.laws.padded_moved import forgets_old_policy
from posttrain.losses import PaddedBatch, PaddedLoss
from tests.library.laws.test_other_trainers import broken

Loss = Callable[[PaddedBatch], Tensor]


def mean(loss: Tensor, batch: PaddedBatch) -> Tensor:
    return (loss * batch.mask).sum() / batch.step_tokens * batch.ranks


def ratio(batch: PaddedBatch) -> Tensor:
    return (batch.logp - batch.old_logp).exp()


def clipped(batch: PaddedBatch) -> Tensor:
    return -torch.min(ratio(batch) * batch.advantage, ratio(batch).clamp(0.8, 1.2) * batch.advantage)


def k3(logp: Tensor, ref_logp: Tensor) -> Tensor:
    return (ref_logp - logp).exp() - (ref_logp - logp) - 1


def other_side(batch: PaddedBatch) -> Tensor:
    return -torch.max(ratio(batch) * batch.advantage, ratio(batch).clamp(0.8, 1.2) * batch.advantage)


def with_kl(kl: Loss) -> Loss:
    return lambda batch: mean(clipped(batch) + 0.1 * kl(batch), batch)


def cispo(weight: Loss) -> Loss:
    return lambda batch: mean(-weight(batch).detach() * batch.advantage * batch.logp, batch)


def corrected(weight: Loss) -> Loss:
    return lambda batch: mean(clipped(batch) * weight(batch).detach(), batch)


def valued(loss: Callable[[Tensor, Tensor, PaddedBatch], Tensor]) -> Loss:
    def whole(batch: PaddedBatch) -> Tensor:
        held = batch.old_value + (batch.value - batch.old_value).clamp(-0.2, 0.2)
        return mean(loss((batch.value - batch.returns).square(), (held - batch.returns).square(), batch), batch)

    return whole


def kept_by_the_clip(batch: PaddedBatch) -> Tensor:
    """The mask of the clip drops the KL of clipped tokens too."""
    passed = (batch.advantage > 0) & (ratio(batch) > 1.2) | (batch.advantage < 0) & (ratio(batch) < 0.8)
    return mean((0.1 * k3(batch.logp, batch.ref_logp) - batch.advantage * ratio(batch)) * ~passed, batch)


def rows_of(loss: Tensor, batch: PaddedBatch) -> Tensor:
    return loss.sum() / batch.step_rows * batch.ranks


def sequence_ratio(batch: PaddedBatch) -> Tensor:
    moved = ((batch.logp - batch.old_logp) * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1)
    return moved.exp()[:, None].expand(batch.mask.shape)


def token_clip_of_a_sequence(batch: PaddedBatch) -> Tensor:
    """GSPO whose clipped branch has the token's ratio."""
    gain = torch.min(sequence_ratio(batch) * batch.advantage, ratio(batch).clamp(0.9997, 1.0004) * batch.advantage)
    return rows_of(-(gain * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1), batch)


RIGHT: dict[str, Loss] = {
    "REINFORCE by exp(logp - its own value)": lambda b: mean(-b.advantage * (b.logp - b.logp.detach()).exp(), b),
    "REINFORCE by logp - its own value": lambda b: mean(-b.advantage * (b.logp - b.logp.detach()), b),
    "a KL that the clip's mask leaves": lambda b: mean(clipped(b) + 0.1 * k3(b.logp, b.ref_logp), b),
    "clip": lambda b: mean(clipped(b), b),
    "no clip": lambda b: mean(-ratio(b) * b.advantage, b),
    "dual clip": lambda b: mean(torch.where(b.advantage < 0, torch.min(clipped(b), -3 * b.advantage), clipped(b)), b),
    "score function": lambda b: mean(-b.logp * b.advantage, b),
    "cispo": cispo(lambda b: ratio(b).clamp(max=1.2)),
    "k3": with_kl(lambda b: k3(b.logp, b.ref_logp)),
    "k3 times the ratio": with_kl(lambda b: k3(b.logp, b.ref_logp) * ratio(b)),
    "k2": with_kl(lambda b: (b.logp - b.ref_logp).square() / 2),
    "k1 in the reward": lambda b: mean(-ratio(b) * (b.advantage - 0.1 * (b.logp - b.ref_logp).detach()), b),
    "teacher": lambda b: mean(-ratio(b) * (b.teacher_logp - b.logp).detach(), b),
    "penalty to the old policy": lambda b: mean(-ratio(b) * b.advantage + ratio(b) - 1 - (b.logp - b.old_logp), b),
    "truncated weight": corrected(lambda b: (b.old_logp - b.sampler_logp).exp().clamp(max=2)),
    "masked weight": corrected(lambda b: ((b.old_logp - b.sampler_logp).exp() - 1).abs() < 0.5),
    "critic": valued(lambda plain, held, _: torch.max(plain, held)),
}
WRONG: dict[str, tuple[Loss, set[str]]] = {
    "sign of the advantage": (lambda b: mean(-clipped(b), b), {"on-policy", "clip side"}),
    "max for min": (lambda b: mean(other_side(b), b), {"clip side"}),
    "clip without min": (lambda b: mean(-ratio(b).clamp(0.8, 1.2) * b.advantage, b), {"clip side"}),
    "the other edge for negative advantages": (
        lambda b: mean(-ratio(b).clamp(max=1.2) * b.advantage, b),
        {"clip side"},
    ),
    "max where the advantage is below 0": (
        lambda b: mean(torch.where(b.advantage > 0, clipped(b), other_side(b)), b),
        {"clip side"},
    ),
    "clipped ratio detached": (
        lambda b: mean(-torch.min(ratio(b) * b.advantage, ratio(b).clamp(0.8, 1.2).detach() * b.advantage), b),
        {"on-policy"},
    ),
    "old and new exchanged": (
        lambda b: mean(-(b.old_logp - b.logp).exp() * b.advantage, b),
        {"on-policy", "clip side"},
    ),
    "old and new exchanged in a weight": (cispo(lambda b: 1 / ratio(b)), {"importance"}),
    "the cap on the other side of a weight": (cispo(lambda b: ratio(b).clamp(min=1.2)), {"importance"}),
    "the sampler's weight turned over": (corrected(lambda b: (b.sampler_logp - b.old_logp).exp()), {"importance"}),
    "the sampler's weight capped from below": (
        corrected(lambda b: (b.old_logp - b.sampler_logp).exp().clamp(min=2)),
        {"importance"},
    ),
    "the ratio counted twice": (lambda b: mean(-ratio(b) * ratio(b).detach() * b.advantage, b), {"importance"}),
    "no exp": (lambda b: mean(-(b.logp - b.old_logp).clamp(0.8, 1.2) * b.advantage, b), {"on-policy"}),
    "KL's sign": (with_kl(lambda b: -k3(b.logp, b.ref_logp)), {"pull"}),
    "KL's arguments exchanged": (with_kl(lambda b: k3(b.ref_logp, b.logp)), {"pull"}),
    "KL's last sign": (with_kl(lambda b: (b.ref_logp - b.logp).exp() + (b.ref_logp - b.logp) - 1), {"pull"}),
    "k1 as a loss": (with_kl(lambda b: b.logp - b.ref_logp), {"pull"}),
    "k1 as a loss, exchanged": (with_kl(lambda b: b.ref_logp - b.logp), {"pull"}),
    "KL without gradient": (with_kl(lambda b: k3(b.logp, b.ref_logp).detach()), {"pull"}),
    "KL times the advantage": (with_kl(lambda b: k3(b.logp, b.ref_logp) * b.advantage), {"pull"}),
    "KL added to the reward": (
        lambda b: mean(-ratio(b) * (b.advantage + 0.1 * (b.logp - b.ref_logp).detach()), b),
        {"pull"},
    ),
    "KL not masked": (
        lambda b: mean(clipped(b), b) + 0.1 * k3(b.logp, b.ref_logp).sum() / b.step_tokens * b.ranks,
        {"padding"},
    ),
    "KL's mean over the micro-batch": (
        lambda b: mean(clipped(b), b) + 0.1 * (k3(b.logp, b.ref_logp) * b.mask).sum() / b.mask.sum() / b.micro_batches,
        {"micro-batches"},
    ),
    "teacher and student exchanged": (lambda b: mean(-ratio(b) * (b.logp - b.teacher_logp).detach(), b), {"pull"}),
    "away from the old policy": (lambda b: mean(-ratio(b) * b.advantage - (b.logp - b.old_logp).square(), b), {"pull"}),
    "mask forgotten": (lambda b: clipped(b).sum() / b.step_tokens * b.ranks, {"padding"}),
    "divided by the padded width": (
        lambda b: (clipped(b) * b.mask).sum() / b.mask.shape[1] / b.micro_batches,
        {"padding"},
    ),
    "a mean over the micro-batch": (
        lambda b: (clipped(b) * b.mask).sum() / b.mask.sum() / b.micro_batches,
        {"micro-batches"},
    ),
    "ranks forgotten": (lambda b: mean(clipped(b), b) / b.ranks, {"processes"}),
    "advantages centred in the micro-batch": (
        lambda b: mean(-ratio(b) * (b.advantage - (b.advantage * b.mask).sum() / b.mask.sum()), b),
        {"micro-batches"},
    ),
    "a sequence's ratio over the padded width": (
        lambda b: -(((b.logp - b.old_logp) * b.mask).mean(1).exp() * b.advantage.mean(1)).sum() / b.step_rows * b.ranks,
        {"padding"},
    ),
    "the clip's mask drops the KL": (kept_by_the_clip, {"pull"}),
    "a token's clip on a sequence's ratio": (token_clip_of_a_sequence, {"clip side"}),
    "0 / 0 in a row without tokens": (
        lambda b: rows_of((clipped(b) * b.mask).sum(1) / b.mask.sum(1), b),
        {"finite"},
    ),
    "critic's min for max": (valued(lambda plain, held, _: torch.min(plain, held)), {"critic"}),
    "critic's sign": (valued(lambda plain, held, _: -torch.max(plain, held)), {"critic"}),
    "critic to its old value": (lambda b: mean((b.value - b.old_value).square(), b), {"critic"}),
}
"""Mistake -> (the loss, laws that have to find it)."""


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_loss_keeps_all_laws(name: str) -> None:
    assert broken(PaddedLoss(RIGHT[name])) == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_loss_is_found(name: str) -> None:
    loss, laws = WRONG[name]
    subject = PaddedLoss(loss)
    assert all(
        not (worst(PADDED_LAWS[law], lambda: subject, name) or 0.0) <= PADDED_LAWS[law].tolerance for law in laws
    )


def test_a_loss_that_never_reads_the_old_policy_is_named() -> None:
    assert forgets_old_policy(PaddedLoss(RIGHT["REINFORCE by logp - its own value"]), SHAPES[0])
    assert not forgets_old_policy(PaddedLoss(RIGHT["clip"]), SHAPES[0])
