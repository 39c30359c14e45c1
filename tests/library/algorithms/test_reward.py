"""The objective of reward models by hand: pairs, ranks and labels."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import QUARTER, t


def step(**rows: torch.Tensor) -> Ragged:
    """Two pairs: the first is won by log 3, the second lost by log 3."""
    columns = {"score": t(QUARTER, 0, 0, QUARTER), **rows}
    return Ragged(torch.zeros(4, dtype=torch.long), columns, item_B=torch.tensor([0, 0, 1, 1]))


PAIRS = step(side=t(1, -1, 1, -1))
MEAN = (-math.log(0.75) - math.log(0.25)) / 2


def test_what_it_needs() -> None:
    assert RewardObjective(RewardConfig()).needs == {"score", "side"}
    assert RewardObjective(RewardConfig(compare="ranks", margins="column")).needs == {"score", "rank", "margin"}
    assert RewardObjective(RewardConfig(compare="labels")).needs == {"score", "label"}


def test_pairs() -> None:
    objective = RewardObjective(RewardConfig())
    prepared = objective.prepare(PAIRS, {"a": 1.0})
    assert_close(prepared.step.rows["weight"], t(0.5, 0.5, 0.5, 0.5))
    assert prepared.state == {"a": 1.0}
    loss = objective.loss(prepared.step, {})
    assert float(loss.total) == pytest.approx(MEAN)
    assert float(loss.metrics["accuracy"]) == 0.5 and float(loss.metrics["margin"]) == pytest.approx(0)


def test_margins_and_centring() -> None:
    objective = RewardObjective(RewardConfig(margin=QUARTER, centring=0.5))
    total = float(objective.loss(objective.prepare(PAIRS, {}).step, {}).total)
    assert total == pytest.approx((math.log(2) - math.log(0.1)) / 2 + 0.5 * QUARTER**2)
    column = RewardObjective(RewardConfig(margins="column"))
    given = PAIRS.with_rows(margin=t(QUARTER, 0, 0, 0))
    assert float(column.loss(column.prepare(given, {}).step, {}).total) == pytest.approx(
        (math.log(2) - math.log(0.25)) / 2
    )


def test_ranks_are_a_mean_over_the_pairs_of_a_prompt() -> None:
    objective = RewardObjective(RewardConfig(compare="ranks"))
    columns = {"score": t(QUARTER, 0, 0), "rank": t(0, 1, 1)}
    given = Ragged(torch.zeros(3, dtype=torch.long), columns, item_B=torch.tensor([0, 0, 0]))
    prepared = objective.prepare(given, {})
    assert_close(prepared.step.rows["weight"], t(0.5, 0.5, 0.5))
    assert float(objective.loss(prepared.step, {}).total) == pytest.approx(-math.log(0.75))
    with pytest.raises(ValueError, match="nothing to train on"):
        objective.prepare(given.with_rows(rank=t(0, 0, 0)), {})


def test_labels() -> None:
    objective = RewardObjective(RewardConfig(compare="labels"))
    prepared = objective.prepare(step(label=t(1, 1, 1, -1)), {})
    assert_close(prepared.step.rows["weight"], t(0.25, 0.25, 0.25, 0.25))
    loss = objective.loss(prepared.step, {})
    assert float(loss.total) == pytest.approx((-math.log(0.75) + 2 * math.log(2) - math.log(0.25)) / 4)
    assert float(loss.metrics["accuracy"]) == 0.25
    with pytest.raises(ValueError, match="compare is labels"):
        RewardConfig(compare="labels", margin=1.0)


def test_heldout_pairs() -> None:
    found = RewardObjective(RewardConfig()).heldout(PAIRS)
    assert_close(found.loss_I, torch.tensor([-math.log(0.75), -math.log(0.25)]))
    assert found.weight_I.tolist() == [1, 1] and found.figures["accuracy"].tolist() == [True, False]
