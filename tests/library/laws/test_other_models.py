"""Diffusion-DPO, mDPO and GPO's preference module: what their mathematics demands."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.errors import ParamsError
from posttrain.losses import (
    GroupPreferences,
    diffusion_dpo_loss,
    group_preference_loss,
    mdpo_loss,
    preference_loss,
)

PAIRS, WIDE = 4, torch.float64
MASK = torch.tensor([[0, 1, 1, 1], [1, 1, 0, 0], [0, 0, 1, 1]] * 3)


def random(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, dtype=WIDE, generator=torch.Generator().manual_seed(seed))


def noises(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Prediction with gradient, reference's prediction, noise: of 8 images of 3 x 2 x 2."""
    prediction, reference, noise = (random(seed + nth, 2 * PAIRS, 3, 2, 2) for nth in range(3))
    return prediction.requires_grad_(), reference, noise


def answers(seed: int = 0) -> tuple[Tensor, Tensor]:
    logp, reference = (-random(seed + nth, *MASK.shape).exp() for nth in range(2))
    return logp.requires_grad_(), reference


def test_diffusion_dpo_is_dpo_of_gaussian_steps() -> None:
    """A denoising step is a Gaussian around the predicted noise: beta |.|^2 is DPO's with beta, variance 1 / 2."""
    prediction, reference, noise = noises()
    logp, ref_logp = (
        torch.distributions.Normal(mean, math.sqrt(0.5)).log_prob(noise).flatten(1) for mean in (prediction, reference)
    )
    theirs, _ = preference_loss("dpo", logp, torch.ones_like(logp), ref_logp=ref_logp, settings={"loss": {"beta": 0.3}})
    ours, _ = diffusion_dpo_loss(prediction, reference, noise, beta=0.3)
    assert_close(ours, theirs)
    assert_close(torch.autograd.grad(ours, prediction), torch.autograd.grad(theirs, prediction))


def test_diffusion_dpo_by_hand() -> None:
    """Errors 1 and 4, of the reference 2 and 2: beta (l - h) = 0.5 ((4 - 2) - (1 - 2)) = 1.5."""
    prediction = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    reference = torch.tensor([[1.0, 1.0], [-1.0, 1.0]])
    loss, metrics = diffusion_dpo_loss(prediction, reference, torch.zeros(2, 2), beta=0.5)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-1.5)))
    assert metrics == {"accuracy": 1.0, "margin": pytest.approx(1.5)}


def test_diffusion_dpo_begins_at_log_2_and_denoises_the_chosen_better() -> None:
    prediction, _, noise = noises()
    loss, _ = diffusion_dpo_loss(prediction, prediction, noise, beta=0.3)
    (gradient,) = torch.autograd.grad(loss, prediction)
    assert loss.item() == pytest.approx(math.log(2))
    side = torch.tensor([1.0, -1.0], dtype=WIDE).repeat_interleave(PAIRS).view(-1, 1, 1, 1)
    assert_close(gradient, 0.3 * side * (prediction - noise).detach() / PAIRS)


def test_diffusion_dpo_of_turned_pairs_differs_by_the_margin() -> None:
    """Since -log sigmoid(-m) + log sigmoid(m) = m; and only differences to the noise count."""
    given = noises()
    loss, metrics = diffusion_dpo_loss(*given, beta=0.2)
    turned, back = diffusion_dpo_loss(*(column.roll(PAIRS, 0) for column in given), beta=0.2)
    assert (turned - loss).item() == pytest.approx(metrics["margin"]) and back["margin"] == -metrics["margin"]
    moved, _ = diffusion_dpo_loss(*(column + 0.7 for column in given), beta=0.2)
    assert_close(moved, loss)


def test_mdpo_is_two_times_dpo_and_an_anchor() -> None:
    logp, reference = answers()
    chosen, rejected, other = torch.arange(9).split(3)

    def dpo(*rows: Tensor) -> Tensor:
        some, mask = torch.cat(rows), MASK[torch.cat(rows)]
        knobs = {"loss": {"beta": 0.4}}
        return preference_loss("dpo", logp[some], mask, ref_logp=reference[some], settings=knobs)[0]

    ratio = (MASK * (logp - reference))[:3].sum(1)
    anchor = -torch.log(torch.sigmoid(0.4 * ratio - 0.25)).mean()
    ours, _ = mdpo_loss(logp, MASK, reference, beta=0.4, anchor=0.25)
    theirs = dpo(chosen, rejected) + dpo(chosen, other) + anchor
    assert_close(ours, theirs)
    assert_close(torch.autograd.grad(ours, logp), torch.autograd.grad(theirs, logp))


def test_mdpo_begins_at_3_log_2_and_its_gradient_says_which_answer() -> None:
    """At the reference every sigmoid is 1/2: the chosen answer's tokens get 3/2, both others -1/2."""
    logp, _ = answers()
    loss, metrics = mdpo_loss(logp, MASK, logp, beta=0.1)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert loss.item() == pytest.approx(3 * math.log(2)) and metrics["image_margin"] == 0
    sides = torch.tensor([-1.5, 0.5, 0.5], dtype=WIDE).repeat_interleave(3)
    assert_close(gradient, 0.1 / 3 * sides[:, None] * MASK)


def test_mdpo_teaches_a_model_without_eyes_nothing_of_images() -> None:
    """Whatever the image, the same log-probs: the image's term is log 2, and it cancels in the gradient."""
    logp, reference = (column[:6] for column in answers())

    def of(parts: Tensor) -> tuple[Tensor, dict[str, float]]:
        rows = torch.cat([parts, parts[:3]]), MASK, torch.cat([reference, reference[:3]])
        return mdpo_loss(*rows, beta=0.3)

    loss, metrics = of(logp)
    seen, _ = preference_loss("dpo", logp, MASK[:6], ref_logp=reference, settings={"loss": {"beta": 0.3}})
    anchor = -torch.log(torch.sigmoid(0.3 * (MASK[:3] * (logp - reference)[:3]).sum(1))).mean()
    assert metrics["image_margin"] == 0
    assert_close(loss, seen + math.log(2) + anchor)
    assert_close(torch.autograd.grad(loss, logp, retain_graph=True), torch.autograd.grad(seen + anchor, logp))


def test_mdpos_anchor_alone_sees_all_rewards_fall() -> None:
    """DPO's terms are blind to a fall of every answer by as much; the anchor is what resists it."""
    logp, reference = answers()
    before, after = (mdpo_loss(logp - fall * (MASK.cumsum(1) == 1), MASK, reference) for fall in (0, 2))
    for name in ("margin", "image_margin"):
        assert before[1][name] == pytest.approx(after[1][name])
    assert after[1]["anchor_margin"] == pytest.approx(before[1]["anchor_margin"] - 0.1 * 2)
    assert after[0] > before[0]


def test_mdpo_does_not_read_padding() -> None:
    logp, reference = answers()
    wild = torch.where(MASK.bool(), logp, torch.inf)
    assert_close(mdpo_loss(wild, MASK, reference)[0], mdpo_loss(logp, MASK, reference)[0])


GROUPS, QUESTIONS, OPTIONS, FEATURES = 3, 5, 4, 6
KNOWN = torch.tensor([[1, 1, 0, 0, 1], [1, 0, 0, 0, 0], [0, 1, 1, 1, 0]])


def asked(seed: int = 0) -> tuple[GroupPreferences, Tensor, Tensor]:
    torch.manual_seed(seed)
    module = GroupPreferences(FEATURES, hidden=16, layers=2, heads=2).double()
    shares = random(seed, GROUPS, QUESTIONS, OPTIONS).softmax(-1)
    return module, random(seed + 1, GROUPS, QUESTIONS, OPTIONS, FEATURES), shares


def test_a_group_has_no_order_of_questions_or_options() -> None:
    module, options, shares = asked()
    scores = module(options, shares, KNOWN)
    order, turned = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 0, 3, 1])
    moved = module(options[:, order][:, :, turned], shares[:, order][:, :, turned], KNOWN[:, order])
    assert_close(moved, scores[:, order][:, :, turned])
    loss = group_preference_loss(scores, shares, KNOWN)[0]
    there = group_preference_loss(moved, shares[:, order][:, :, turned], KNOWN[:, order])[0]
    assert_close(there, loss)


def test_unknown_answers_and_other_unknown_questions_are_not_read() -> None:
    module, options, shares = asked()
    shares, options = shares.requires_grad_(), options.requires_grad_()
    scores = module(options, shares, KNOWN)
    of_shares, of_options = torch.autograd.grad(scores[0, 2].sum(), (shares, options))
    others = torch.tensor([True, True, False, False, True])  # the known ones of group 0
    assert (of_shares[0][others] != 0).all() and (of_options[0][others] != 0).any(-1).all()
    assert of_shares[0][~others].abs().max() == 0 and of_shares[1:].abs().max() == 0
    assert of_options[0, 3].abs().max() == 0 and of_options[0, 2].abs().max() > 0


def test_the_loss_is_0_at_the_groups_shares_and_nowhere_else() -> None:
    _, _, shares = asked()
    scores = (shares.log() + 3.0).requires_grad_()
    loss, metrics = group_preference_loss(scores, shares, KNOWN)
    assert loss.item() == pytest.approx(0, abs=1e-12) and metrics == {"accuracy": 1.0}
    off = random(7, *shares.shape).requires_grad_()
    loss, _ = group_preference_loss(off, shares, KNOWN)
    (gradient,) = torch.autograd.grad(loss, off)
    unknown = ~KNOWN.bool()
    assert loss > 0
    assert_close(gradient, unknown[..., None] * (off.softmax(-1) - shares).detach() / unknown.sum())


def test_an_option_that_nobody_chose_has_a_finite_loss() -> None:
    shares = torch.tensor([[[1.0, 0.0]]])
    scores = torch.tensor([[[2.0, 0.0]]], requires_grad=True)
    loss, _ = group_preference_loss(scores, shares, torch.tensor([[False]]))
    assert loss.item() == pytest.approx(math.log1p(math.exp(-2)))
    assert torch.autograd.grad(loss, scores)[0].isfinite().all()


def test_mistakes_are_named() -> None:
    row = torch.zeros(4, 3)
    with pytest.raises(ParamsError, match="3 rows are not pairs"):
        diffusion_dpo_loss(row[:3], row[:3], row[:3], beta=1.0)
    with pytest.raises(ParamsError, match=r"have shapes .*\(4, 3\).*\(4, 1\).*one shape"):
        diffusion_dpo_loss(row, row[:, :1], row, beta=1.0)
    with pytest.raises(ParamsError, match="4 rows are not triples"):
        mdpo_loss(row, row, row)
    with pytest.raises(ParamsError, match="all questions are known"):
        group_preference_loss(row[None], row[None], torch.ones(1, 4))
