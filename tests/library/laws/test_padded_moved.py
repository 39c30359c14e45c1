"""Laws of padded losses on tokens that have moved: each keeps or misses them where it must."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.padded import PaddedBatch, PaddedLoss
from posttrain.laws import moved
from posttrain.laws.cases import Shape
from posttrain.laws.examples import Example, Miss
from posttrain.laws.padded_cases import build
from posttrain.laws.padded_moved import (
    _change_by_opposites,
    _highest,
    _quiet,
    _respond,
    _tokens,
    clip_side,
    couples_tokens,
    critic,
    forgets_old_policy,
    importance,
    pull,
    reads,
)
from tests.library.laws.test_wrong_losses import (
    RIGHT,
    WRONG,
    kept_by_the_clip,
    mean,
    rows_of,
    sequence_ratio,
    token_clip_of_a_sequence,
)

SHAPE = Shape(seed=3, longest=5)
CLIP = PaddedLoss(RIGHT["clip"])
PLAIN = PaddedLoss(RIGHT["no clip"])
KL = PaddedLoss(RIGHT["k3"])


def gspo(batch: PaddedBatch) -> Tensor:
    gain = sequence_ratio(batch) * batch.advantage
    return rows_of(-(gain * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1), batch)


def example_of(error: float | None) -> Example:
    assert isinstance(error, Miss) and error == math.inf
    return error.example()


def wrong(name: str) -> PaddedLoss:
    return PaddedLoss(WRONG[name][0])


@pytest.mark.parametrize("law", [clip_side, importance])
def test_tokens_are_moved_on_every_third_case(law: Callable[[PaddedLoss, Shape], float | None]) -> None:
    assert law(CLIP, replace(SHAPE, seed=4)) is None
    assert law(CLIP, SHAPE) == 0.0 and law(PaddedLoss(gspo), SHAPE) == 0.0


def test_a_clip_on_the_wrong_side_is_found() -> None:
    found = example_of(clip_side(wrong("max for min"), SHAPE))
    assert found.quantity == "gradient by logp from its advantage" and found.expected == "below 0"


def test_a_clip_that_no_row_s_ratio_explains_is_found() -> None:
    found = example_of(clip_side(PaddedLoss(token_clip_of_a_sequence), SHAPE))
    inputs = {"logp - old_logp of each row's first token": moved.SMALL, "of its last": -moved.SMALL}
    assert (found.place, found.inputs, found.quantity) == ("every row", inputs, "change of the loss")
    assert found.expected == 0.0 and found.found == _change_by_opposites(PaddedLoss(token_clip_of_a_sequence), SHAPE)
    assert found.found != 0


def test_opposite_moves_leave_a_sequence_s_loss() -> None:
    assert _change_by_opposites(PaddedLoss(gspo), SHAPE) == 0.0


@pytest.mark.parametrize("name", ["old and new exchanged in a weight", "the sampler's weight turned over"])
def test_a_wrong_weight_is_found(name: str) -> None:
    assert "weight" in example_of(importance(wrong(name), SHAPE)).quantity


def test_a_loss_without_other_policies_is_not_pulled() -> None:
    assert pull(PaddedLoss(lambda batch: mean(-batch.logp * batch.advantage, batch)), SHAPE) is None


def test_a_right_kl_has_no_error() -> None:
    for name in ("k3", "k2", "teacher", "penalty to the old policy"):
        assert pull(PaddedLoss(RIGHT[name]), SHAPE) == 0.0


def test_a_loss_that_falls_with_the_distance_is_found() -> None:
    found = example_of(pull(wrong("KL's sign"), SHAPE))
    assert (found.place, found.quantity) == ("every row", "rise of the loss when ref_logp moves away")
    assert found.found < 0 and found.expected == "0 or above"


def test_a_kl_that_the_clip_drops_is_found() -> None:
    found = example_of(pull(PaddedLoss(kept_by_the_clip), SHAPE))
    assert found.quantity == "gradient by logp that ref_logp gives" and found.place == "row 0, token 0"
    assert found.inputs == {"logp - old_logp": 1.5, "logp - ref_logp": 0.3, "advantage": 1.0, "mask": 1.0}
    assert (found.found, found.expected) == (0.0, "not 0")


def test_a_loss_that_leaves_its_old_policy_is_found() -> None:
    found = example_of(pull(wrong("away from the old policy"), SHAPE))
    assert found.quantity == "gradient by logp" and found.inputs["advantage"] == 0.0


def test_which_losses_never_read_the_old_policy() -> None:
    assert forgets_old_policy(PaddedLoss(RIGHT["score function"]), SHAPE) is True
    assert forgets_old_policy(CLIP, SHAPE) is False
    assert forgets_old_policy(PaddedLoss(lambda batch: mean(batch.value.square(), batch)), SHAPE) is False


def test_a_critic_is_drawn_to_its_return() -> None:
    assert critic(CLIP, SHAPE) is None
    assert critic(PaddedLoss(RIGHT["critic"]), SHAPE) == 0.0


def test_a_critic_that_is_drawn_away_is_found() -> None:
    away = PaddedLoss(lambda batch: mean(-(batch.value - batch.returns).square(), batch))
    found = example_of(critic(away, SHAPE))
    assert found.quantity == "gradient by value" and found.place == "row 0, token 0"
    assert found.inputs["value"] - found.inputs["returns"] == pytest.approx(1.01)
    assert found.found == pytest.approx(-2.02 / 12) and found.expected == "above 0"


def test_which_losses_couple_the_tokens_of_a_row() -> None:
    assert couples_tokens(PaddedLoss(gspo), SHAPE) is True
    assert couples_tokens(PLAIN, SHAPE) is False
    assert couples_tokens(PaddedLoss(lambda batch: mean(batch.value.square(), batch)), SHAPE) is False


def test_the_gradient_by_the_policy_s_log_probs() -> None:
    log_ratio = torch.full_like(moved.SIGNS, 0.2)
    found = _respond(PLAIN, SHAPE, moved.SIGNS, log_ratio)
    assert_close(found, -moved.SIGNS * math.exp(0.2) / 12)
    sampled = PaddedLoss(lambda batch: mean(-(batch.logp - batch.sampler_logp).exp() * batch.advantage, batch))
    assert_close(_respond(sampled, SHAPE, moved.SIGNS, log_ratio, -log_ratio), -moved.SIGNS / 12)
    assert_close(_respond(sampled, SHAPE, moved.SIGNS, 0 * log_ratio, log_ratio), found)
    unread = PaddedLoss(lambda batch: mean(batch.value.square(), batch))
    assert not _respond(unread, SHAPE, moved.SIGNS, log_ratio).any()


def test_log_probs_stay_between_their_bounds() -> None:
    highest = _highest(SHAPE)
    assert len(highest) == 12 and bool(((highest <= -0.1) & (highest >= -0.4)).all())
    assert_close(highest, _highest(SHAPE))


def test_rows_of_one_token_are_quiet_but_for_the_given_columns() -> None:
    logp = _highest(SHAPE)
    step = _tokens(logp, ref_logp=2 * logp)
    assert step.rows.lengths_B.tolist() == [1] * 12
    columns = dict(step.rows.tokens)
    assert_close(columns.pop("ref_logp"), 2 * logp)
    assert {name for name, part in columns.items() if not part.any()} == {"advantage", "value", "old_value", "returns"}
    assert all(torch.equal(part, logp) for name, part in columns.items() if name.endswith("logp"))


def test_a_quiet_step_has_no_advantage_and_no_anchor() -> None:
    step = build(SHAPE)
    tokens = _quiet(step).rows.tokens
    assert not tokens["advantage"].any()
    assert torch.equal(tokens["ref_logp"], tokens["logp"]) and torch.equal(tokens["teacher_logp"], tokens["logp"])
    assert torch.equal(tokens["old_logp"], step.rows.tokens["old_logp"])


def test_which_columns_a_loss_reads() -> None:
    step = build(SHAPE)
    assert reads(KL, step, "ref_logp") and reads(KL, step, "old_logp")
    assert not reads(KL, step, "teacher_logp")
    by_gradient = PaddedLoss(lambda b: mean((b.ref_logp * (b.logp - b.logp.detach())), b))
    assert reads(by_gradient, step, "ref_logp") is True
