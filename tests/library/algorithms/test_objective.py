"""What every objective is made of: metrics that add up, columns, rows of tables and moving options."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.objective import (
    AlgorithmRow,
    Objective,
    add_metrics,
    columns_before_prepare,
    flat,
    named,
    part_columns,
    parts_of,
    require_columns,
    step_metrics,
    typed,
    with_gradient,
)
from posttrain.algorithms.policy.ppo import ClipOptions
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import t


def test_moving_options_go_on_a_straight_line() -> None:
    options = ClipOptions(type="ppo_clip", low=0.2, low_end=0.1, high=0.2, high_end=0.4, steps=4)
    assert options.ends == {"low": 0.1, "high": 0.4}
    half = options.at(2)
    assert (half.low, half.high) == pytest.approx((0.15, 0.3))
    assert (options.at(9).low, options.at(0).high) == (0.1, 0.2)
    still = ClipOptions(type="ppo_clip")
    assert still.ends == {} and still.at(3) == still
    with pytest.raises(ValueError, match="only work together"):
        ClipOptions(type="ppo_clip", low_end=0.1)


def test_metrics_add_up_and_extremes_stay() -> None:
    totals = {"a": t(1), "b_min": t(1), "c_max": t(1)}
    add_metrics(totals, {"a": t(2), "b_min": t(0), "c_max": t(0), "new": t(5)})
    assert {name: float(value) for name, value in totals.items()} == {"a": 3, "b_min": 0, "c_max": 1, "new": 5}


def test_step_metrics_have_the_effective_sample_size() -> None:
    found = step_metrics({"w": torch.tensor(0.5), "w_square": torch.tensor(0.5), "none_square": torch.tensor(0.0),
                          "none": torch.tensor(0.0)})  # fmt: skip
    assert found == {"w": 0.5, "none": 0.0, "w_ess": 0.5, "none_ess": 0.0}


def test_columns() -> None:
    assert columns_before_prepare(frozenset({"logp", "entropy", "reward"})) == {"reward"}
    assert columns_before_prepare(frozenset({"value"})) == {"old_value"}
    step = Ragged(torch.tensor([1]), {"reward": t(1)}, {"old_logp": t(-1)})
    require_columns(step, {"reward", "old_logp"}, "mine")
    with pytest.raises(KeyError, match="objective 'mine' needs the columns"):
        require_columns(step, {"reward_parts"}, "mine")


def test_gradient_columns_follow_rows_and_tokens() -> None:
    rows, tokens = {"row": torch.tensor([1, 0])}, {"token": torch.tensor([2, 0, 1])}
    step = with_gradient(Ragged(torch.tensor([1, 2]), rows, tokens), {"score": t(5, 6), "logp": t(-1, -2, -3)})
    assert_close(step.rows["score"], t(6, 5))
    assert_close(step.tokens["logp"], t(-3, -1, -2))


def test_rows_of_a_table() -> None:
    row = AlgorithmRow("paper", "formula", {"aggregation": "sequence_mean"})
    assert named("mine", row).name == "mine"
    given = typed(LikelihoodConfig)("mine", row)
    assert (given.name, given.model) == ("mine", LikelihoodConfig)
    assert given.merged({"by_probability": True}) == {"aggregation": "sequence_mean", "by_probability": True}
    assert given.settings(by_probability=True).by_probability is True


def test_flat() -> None:
    assert list(flat({"a": {"b": 1, "c": {"d": 2}}, "e": 3})) == [("a.b", 1), ("a.c.d", 2), ("e", 3)]


def test_parts_of_the_reward() -> None:
    columns = part_columns({"correct": (t(1, 0), 0.5)})
    assert sorted(columns) == ["part.correct", "weight.correct"]
    assert_close(columns["weight.correct"], t(0.5, 0.5))
    ((name, (scores, weight)),) = parts_of(columns).items()
    assert (name, scores.tolist(), weight) == ("correct", [1, 0], 0.5)


def test_the_defaults_of_the_protocol() -> None:
    class Plain(Objective):
        needs = frozenset()

        def prepare(self, step: Ragged, state: dict[str, float]) -> None:  # type: ignore[override]
            pass

        def loss(self, micro: Ragged, state: dict[str, float]) -> None:  # type: ignore[override]
            pass

    plain = Plain()
    assert plain.by_token is False and plain.initial_state() == {}
    assert LikelihoodObjective(LikelihoodConfig()).by_token is True
