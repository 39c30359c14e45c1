"""Metrics of a round: failed scores count nowhere, and a group of equal rewards has no signal."""

from __future__ import annotations

import statistics

import pytest
import torch

from posttrain.algorithms.objective import part_columns
from posttrain.errors import ParamsError
from posttrain.online.rounds import groups_with_signal, reward_metrics
from posttrain.pipeline.params.named_runs import typed_run
from posttrain.pipeline.runs.online import ONLINE
from posttrain.rollout import Prompt, Rollout, Score, TokenRow, token_rows
from posttrain.train.step import Batch, make_batch


def scored(**scores: Score) -> Rollout:
    return Rollout(Prompt("p", [], ()), 0, TokenRow([1], [2]), [-1.0], "", "stop", scores=scores)


def test_each_part_of_the_reward_by_hand() -> None:
    rollouts = [
        scored(correct=Score(1.0), judge=Score(0.0, "timeout")),
        scored(correct=Score(0.0, "unparseable"), judge=Score(0.5)),
        scored(correct=Score(1.0), judge=Score(0.9)),
        scored(correct=Score(1.0), judge=Score(0.0, "infrastructure")),
    ]
    found = reward_metrics(["correct", "judge"], rollouts)
    assert found["reward_correct"] == 0.75 and found["reward_correct_ok"] == 0.75
    assert found["reward_correct_std"] == pytest.approx(0.5)
    assert found["reward_judge"] == pytest.approx(0.7), "a failed score is no 0"
    assert found["reward_judge_std"] == pytest.approx(statistics.stdev([0.5, 0.9]))
    assert found["reward_judge_ok"] == 0.5


def test_a_part_that_scored_nothing_has_no_mean() -> None:
    assert reward_metrics(["judge"], [scored(judge=Score(0.0, "error"))]) == {
        "reward_judge_ok": 0.0,
        "reward_judge_failed": 1.0,
    }


def group(*rewards: float) -> Batch:
    count = len(rewards)
    return make_batch(token_rows([[1]] * count, [[2]] * count), {"reward": torch.tensor(rewards)})


def test_the_share_of_groups_whose_rewards_differ() -> None:
    assert groups_with_signal([group(0.0, 0.0), group(1.0, 1.0), group(0.0, 1.0), group(0.2, 0.2)]) == 0.25


@pytest.mark.parametrize(("weight", "share"), [(1.0, 1.0), (0.0, 0.0)])
def test_parts_that_are_compared_one_by_one_have_signal_where_their_sum_has_none(weight: float, share: float) -> None:
    parts = part_columns({"a": (torch.tensor([0.0, 1.0]), weight), "b": (torch.tensor([1.0, 0.0]), weight)})
    columns = {"reward": torch.ones(2), **parts}
    assert groups_with_signal([make_batch(token_rows([[1]] * 2, [[2]] * 2), columns)]) == share


GIVEN = {"start": "base/a", "data": "a/prompts", "corpus": "none", "reward_model": "none"}


@pytest.mark.parametrize(
    ("algorithm", "reward", "said"),
    [
        ("gdpo", {"correct": 1.0, "format": {"gate": True}}, "'format' is a gate, but advantage 'gdpo' compares each"),
        ("dapo", {"correct": {"normalise": True}, "format": 0.2}, "'correct' is normalised over a round, but resample"),
    ],
)
def test_rewards_that_do_not_fit_how_they_are_compared_are_refused(
    algorithm: str, reward: dict[str, object], said: str
) -> None:
    with pytest.raises(ParamsError, match=said):
        typed_run({**GIVEN, "algorithm": algorithm, "reward": reward}, "online.runs.a", ONLINE)
    typed_run({**GIVEN, "algorithm": "grpo", "reward": reward}, "online.runs.a", ONLINE)
