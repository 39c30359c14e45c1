"""The likelihood objective by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective, weighted_sum, with_weights
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import t

LOGP = t(math.log(0.5), math.log(0.25), math.log(0.125))
STEP = Ragged(torch.tensor([1, 2]), tokens={"logp": LOGP, "entropy": t(1, 2, 6)})


def test_weights() -> None:
    tokens = with_weights(STEP, {"a": 1.0}, "token_mean")
    assert_close(tokens.step.tokens["weight"], t(1, 1, 1) / 3)
    rows = with_weights(STEP, {}, "sequence_mean")
    assert_close(rows.step.tokens["weight"], t(0.5, 0.25, 0.25))
    assert_close(rows.step.tokens["token_mean_weight"], t(1, 1, 1) / 3)
    assert (tokens.state, tokens.counts, tokens.metrics) == ({"a": 1.0}, True, {"length": 1.5})
    none = with_weights(STEP.with_rows(counts=torch.zeros(2)), {}, "token_mean")
    assert none.counts is False and not none.step.tokens["weight"].any()


def test_weighted_sum() -> None:
    assert float(weighted_sum(STEP.with_tokens(weight=t(1, 0, 2)), t(3, 5, 7))) == 17


def test_loss_and_entropy() -> None:
    objective = LikelihoodObjective(LikelihoodConfig())
    assert objective.needs == {"entropy"} and objective.by_token is True
    loss = objective.loss(objective.prepare(STEP, {}).step, {})
    assert float(loss.total) == pytest.approx(2 * math.log(2))
    assert float(loss.metrics["entropy"]) == pytest.approx(3)


def test_dynamic_fine_tuning_weighs_by_the_probability() -> None:
    objective = LikelihoodObjective(LikelihoodConfig(by_probability=True))
    loss = objective.loss(objective.prepare(STEP, {}).step, {})
    assert float(loss.total) == pytest.approx(-float((LOGP.exp() * LOGP).sum()) / 3)


def test_heldout_rows_weigh_by_their_tokens() -> None:
    found = LikelihoodObjective(LikelihoodConfig()).heldout(STEP)
    assert_close(found.loss_I, t(math.log(2), 2.5 * math.log(2)))
    assert_close(found.weight_I, t(1, 2))
    by_row = LikelihoodObjective(LikelihoodConfig(aggregation="sequence_mean")).heldout(STEP)
    assert_close(by_row.weight_I, t(1, 1))
