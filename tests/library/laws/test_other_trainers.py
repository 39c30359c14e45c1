"""Correct losses of other trainers keep every law that applies to them, and laws say what is wrong with the rest."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from posttrain.laws.own import worst
from posttrain.laws.padded import PADDED_LAWS
from posttrain.losses import PaddedBatch, PaddedLoss
from tests.library.laws import verl_losses as verl


def broken(subject: PaddedLoss) -> list[str]:
    found = {name: worst(law, lambda: subject, "subject") for name, law in PADDED_LAWS.items()}
    return [name for name, error in found.items() if error is not None and not error <= PADDED_LAWS[name].tolerance]


def applied(subject: PaddedLoss) -> set[str]:
    return {name for name, law in PADDED_LAWS.items() if worst(law, lambda: subject, "subject") is not None}


@pytest.mark.slow
@pytest.mark.parametrize("mode", verl.MODES[1:])
@pytest.mark.parametrize("name", ["vanilla", "gspo"])
def test_each_mean_of_verl(name: str, mode: str) -> None:
    assert broken(verl.verl(verl.LOSSES[name], mode)) == []


@pytest.mark.parametrize("name", verl.LOSSES)
def test_losses_of_verl_with_a_kl_and_weights_for_the_sampler(name: str) -> None:
    subject = verl.verl(verl.LOSSES[name], kl="k3", correct=True)
    assert broken(subject) == []
    assert "pull" in applied(subject)


@pytest.mark.parametrize("kind", ["k2", "k3", "abs", "k1+", "k3+"])
def test_each_kl_of_verl(kind: str) -> None:
    assert broken(verl.verl(verl.compute_policy_loss_vanilla, kl=kind)) == []


def test_k1_in_the_loss_has_no_expected_gradient() -> None:
    """verl and TRL allow it; here a run with it is refused, since the KL does not fall."""
    assert "pull" in broken(verl.verl(verl.compute_policy_loss_vanilla, kl="k1"))


@pytest.mark.parametrize("name", verl.OVER_THE_MICRO_BATCH)
def test_tokens_that_are_chosen_in_each_micro_batch(name: str) -> None:
    assert set(broken(verl.verl(verl.OVER_THE_MICRO_BATCH[name]))) <= {"micro-batches", "processes", "padding", "order"}


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_the_critic_of_verl(mode: str) -> None:
    subject = verl.verl(verl.compute_value_loss, mode)
    assert broken(subject) == []
    assert "critic" in applied(subject)


def gspo_of_trl(batch: PaddedBatch) -> Tensor:
    """TRL's loss_type grpo with importance_sampling_level sequence and a KL, by its formula."""
    tokens = batch.mask.sum(-1).clamp(min=1)
    ratio = (((batch.logp - batch.old_logp) * batch.mask).sum(-1) / tokens).exp()[:, None]
    loss = -torch.min(ratio * batch.advantage, ratio.clamp(1 - 3e-4, 1 + 4e-4) * batch.advantage)
    away = batch.ref_logp - batch.logp
    loss = loss + 0.04 * (away.exp() - away - 1)
    return ((loss * batch.mask).sum(-1) / tokens).mean() / batch.micro_batches


def gspo_of_rows(batch: PaddedBatch) -> Tensor:
    """The same, with the advantage of a row taken once."""
    tokens = batch.mask.sum(-1).clamp(min=1)
    ratio = (((batch.logp - batch.old_logp) * batch.mask).sum(-1) / tokens).exp()
    first = batch.mask.int().argmax(-1, keepdim=True)
    good = batch.advantage.gather(1, first).squeeze(1)
    return -torch.min(ratio * good, ratio.clamp(1 - 3e-4, 1 + 4e-4) * good).sum() / batch.step_rows * batch.ranks


@pytest.mark.parametrize("loss", [gspo_of_trl, gspo_of_rows])
def test_losses_of_whole_sequences(loss: object) -> None:
    assert broken(PaddedLoss(loss)) == []  # type: ignore[arg-type]
