"""Completions are scored, again and again, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import RewardError
from posttrain.evaluate.config import EvaluateConfig
from posttrain.evaluate.in_context import BY_CONTEXT
from posttrain.evaluate.policy import Evaluation, scored_completions
from posttrain.evaluate.sampled import SampledCompletions
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import Prompt, Score
from tests.library.models.tiny import rollout_of

TEXTS = ("a", "bb", "cc", "dddd")


def length(rollouts: Sequence[Any]) -> list[float]:
    return [float(len(one.text)) for one in rollouts]


def vowels(rollouts: Sequence[Any]) -> list[float]:
    return [float("a" in one.text) for one in rollouts]


def given(**metrics: float) -> SampledCompletions:
    prompts = [Prompt(f"p{nth}", [{"role": "user", "content": str(nth)}], ()) for nth in range(2)]
    rollouts = [replace(rollout_of(text), prompt=prompts[nth // 2], sample=nth % 2) for nth, text in enumerate(TEXTS)]
    return SampledCompletions(rollouts, [rollouts[0], rollouts[2]], metrics)


def scored(found: SampledCompletions, reward: Any, **settings: Any) -> Evaluation:
    config = EvaluateConfig(reward=reward, **settings)
    return scored_completions(config, found, config.scorer(Runtime(DeviceParams()), None, None, "here"), "here")


def test_the_same_completions_get_the_scores_of_other_rewards() -> None:
    first = scored(given(kl_k3=0.5), {"length": length})
    assert first.metrics["score"] == pytest.approx(9 / 4) and first.metrics["greedy"] == 1.5
    assert first.metrics["kl_k3"] == 0.5 and first.scorer is not None
    assert first.completions is not None
    second = scored(first.completions, {"vowels": vowels})
    assert second.metrics["score"] == 0.25 and second.metrics["kl_k3"] == 0.5
    assert list(second.rollouts[0].scores) == ["vowels"], "the old scores are gone"


def test_a_score_that_needed_the_weights_stays() -> None:
    found = given()
    gained = [replace(one, scores={BY_CONTEXT: Score(nth)}) for nth, one in enumerate(found.rollouts)]
    again = scored(replace(found, rollouts=gained), {"length": length})
    assert [list(one.scores) for one in again.rollouts] == [["length", BY_CONTEXT]] * 4
    assert again.metrics["best_of_2_by_context"] == pytest.approx((2 + 4) / 2)


def test_too_many_failures_are_an_error() -> None:
    def fails(rollouts: Sequence[Any]) -> list[Any]:
        return [Score(0.0, "error", "no")] * len(rollouts)

    with pytest.raises(RewardError, match="fails"):
        scored(given(), {"fails": fails}, max_failed=0.1)
