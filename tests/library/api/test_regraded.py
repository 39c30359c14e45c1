"""`regrade`: stored rollouts get the scores of other rewards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import posttrain
from posttrain import ScoreConfig
from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.rollout import Rollout, Score
from tests.library.models.tiny import rollout_of

GROUPS = [[rollout_of("four", "4"), rollout_of("4", "4")], [rollout_of("The answer is 4.", "4")]]


def best(rollouts: Sequence[Rollout]) -> list[float]:
    """1 for the longest of the rollouts that are scored together."""
    longest = max(len(one.text) for one in rollouts)
    return [float(len(one.text) == longest) for one in rollouts]


def test_each_group_is_scored_together() -> None:
    found = list(posttrain.regrade(GROUPS, best))
    assert [[one.reward for one in group] for group in found] == [[1.0, 0.0], [1.0]]
    assert [one.rollout.text for group in found for one in group] == ["four", "4", "The answer is 4."]


def test_what_has_no_answer_and_what_failed() -> None:
    config = ScoreConfig(reward={"correct": {"answer": "exact"}})
    ((wrong, right), _) = posttrain.regrade(GROUPS, config=config)
    assert (wrong.reward, right.reward, right.status) == (0.0, 1.0, "ok")

    def some(rollouts: Sequence[Rollout]) -> list[Any]:
        return [Score(0.0, "error", "no") if one.text == "4" else 1.0 for one in rollouts]

    ((kept, failed), _) = posttrain.regrade(GROUPS, config=ScoreConfig(reward={"some": some}, max_failed=0.9))
    assert (kept.reward, failed.reward, failed.status) == (1.0, None, "error")
    with pytest.raises(RewardError, match="some"):
        list(posttrain.regrade([[GROUPS[0][1]] * 40], config=ScoreConfig(reward={"some": some}, max_failed=0.1)))


def test_a_prompt_that_no_reward_can_judge_has_no_score() -> None:
    asked = rollout_of("4", "")
    unanswered = replace(asked, prompt=replace(asked.prompt, id="p1"))
    ((judged, other),) = posttrain.regrade([[rollout_of("4", "4"), unanswered]], {"correct": 1.0, "format": 0.2})
    assert judged.reward is not None and judged.reward >= 1.0
    assert (other.reward, other.status) == (None, "unjudged")


def test_misuse_is_named() -> None:
    with pytest.raises(ParamsError, match="there is no reward"):
        posttrain.regrade(GROUPS)
    with pytest.raises(DataError, match="this is a rollout, not a group of rollouts"):
        next(posttrain.regrade(GROUPS[0], best))  # type: ignore[arg-type]
    with pytest.raises(ParamsError, match="reward model"):
        list(posttrain.regrade(GROUPS, {"model": 1.0}))
    with pytest.raises(ParamsError, match="reward would be ignored"):
        list(posttrain.regrade(GROUPS, best, config=ScoreConfig()))
