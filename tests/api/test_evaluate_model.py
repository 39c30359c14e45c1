"""`evaluate_model`: the metrics of a model on prompts in memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.errors import ParamsError, RewardError
from tests.models.tiny import tiny_folder

PROMPTS = ["a", "ab", "ba", "bb"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return posttrain.load_model(tiny_folder(tmp_path_factory.mktemp("model")))


def starts_with_a(rollouts: Sequence[Any]) -> list[float]:
    return [float(one.text.startswith("a")) for one in rollouts]


def test_the_score_is_the_mean_of_the_rewards(model: tuple[Any, Any]) -> None:
    found = posttrain.evaluate_model(*model, PROMPTS, starts_with_a, samples=4, max_tokens=3)
    rewards = starts_with_a(found.rollouts)
    assert len(rewards) == 16 and len(found.greedy) == 4
    assert found.metrics["score"] == pytest.approx(sum(rewards) / 16)
    assert found.metrics["score_low"] <= found.metrics["score"] <= found.metrics["score_high"]
    assert found.metrics["greedy"] == sum(starts_with_a(found.greedy)) / 4
    again = posttrain.evaluate_model(*model, PROMPTS, starts_with_a, samples=4, max_tokens=3)
    assert again.metrics == found.metrics
    assert [one.text for one in again.rollouts] == [one.text for one in found.rollouts]


def test_training_raises_the_score_and_the_distance_to_the_start(model: tuple[Any, Any]) -> None:
    policy, tokenizer = copy.deepcopy(model[0]), model[1]
    rows = [{"prompt": prompt, "completion": "aaa"} for prompt in PROMPTS[:2]]
    same = posttrain.evaluate_model(policy, tokenizer, PROMPTS[2:], starts_with_a, max_tokens=3, reference=model[0])
    assert same.metrics["kl_k3"] == pytest.approx(0, abs=1e-6)
    posttrain.train_model(policy, tokenizer, rows, epochs=30, batch_size=2, optimizer={"lr": 1e-2})
    after = posttrain.evaluate_model(policy, tokenizer, PROMPTS[2:], starts_with_a, max_tokens=3, reference=model[0])
    assert after.metrics["score"] > same.metrics["score"] + 0.3
    assert after.metrics["kl_k3"] > 0.01


def test_a_posttrain_reward_reads_the_answer(model: tuple[Any, Any]) -> None:
    rows = [{"prompt": "1 + 1", "answer": "2"}, {"prompt": "2 + 1", "answer": "3"}]
    found = posttrain.evaluate_model(*model, rows, {"correct": 1.0}, samples=2, max_tokens=4)
    assert 0 <= found.metrics["score"] <= 1 and "parsed" in found.metrics


def test_misuse_is_named(model: tuple[Any, Any], tmp_path: Path) -> None:
    def fails(rollouts: Sequence[Any]) -> list[float]:
        raise KeyError("gone")

    with pytest.raises(RewardError, match="fails"):
        posttrain.evaluate_model(*model, PROMPTS, fails, samples=1, max_tokens=2)
    with pytest.raises(ParamsError, match="samples"):
        posttrain.evaluate_model(*model, PROMPTS, starts_with_a, samples=0)
    with pytest.raises(ParamsError, match="samples: unknown key"):
        posttrain.evaluate_model(*model, PROMPTS, starts_with_a, sampling={"samples": 3})
    with pytest.raises(ParamsError, match="reward model"):
        posttrain.evaluate_model(*model, PROMPTS, {"model": 1.0})
    with pytest.raises(ParamsError, match="top_p"):
        posttrain.evaluate_model(*model, PROMPTS, starts_with_a, sampling={"top_p": 0.5}, reference=model[0])
