"""`evaluate_model`: the metrics of a model on prompts in memory."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain import EvaluateConfig, SampleConfig
from posttrain.errors import DataError, ParamsError, RewardError
from posttrain.evaluate.context import ContextTurn
from posttrain.rollout import Score
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.step_labels import StepLabels
from tests.library.models.tiny import tiny_folder

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


def test_a_config_has_all_settings(model: tuple[Any, Any], tmp_path: Path) -> None:
    """A policy of a folder and a model of the caller's have the same samples; a weight of 0 is a metric."""
    folder = tiny_folder(tmp_path / "model")
    config = EvaluateConfig(reward=starts_with_a, samples=4, sampling=SamplingParams(max_tokens=3))
    loaded = posttrain.evaluate_model(posttrain.load_frozen(folder, config), None, PROMPTS, config=config)
    own = posttrain.evaluate_model(*posttrain.load_model(folder), PROMPTS, config=config, reference=folder)
    assert [one.text for one in loaded.rollouts] == [one.text for one in own.rollouts]
    assert loaded.metrics == {name: value for name, value in own.metrics.items() if not name.startswith("kl_")}
    assert own.metrics["kl_k3"] == pytest.approx(0, abs=1e-6)
    both = {"starts_with_a": starts_with_a, "length": (lambda rollouts: [len(one.text) for one in rollouts], 0.0)}
    measured = posttrain.evaluate_model(*model, PROMPTS, both, samples=2, max_tokens=3)
    assert "reward_length" in measured.metrics
    with pytest.raises(ParamsError, match=r"EvaluateConfig\.sample: unknown key\. Did you mean"):
        EvaluateConfig(sample=3)  # type: ignore[call-arg]
    with pytest.raises(ParamsError, match="samples would be ignored"):
        posttrain.evaluate_model(*model, PROMPTS, config=config, samples=3)
    with pytest.raises(ParamsError, match="Give None"):
        posttrain.evaluate_model(posttrain.load_frozen(folder, config), model[1], PROMPTS, config=config)


def test_turns_before_each_prompt_are_read_and_not_scored(model: tuple[Any, Any]) -> None:
    turns = [ContextTurn(role="user", content="aa"), ContextTurn(role="assistant", content="ab")]
    config = EvaluateConfig(reward=starts_with_a, samples=2, sampling=SamplingParams(max_tokens=3), context=turns)
    found = posttrain.evaluate_model(*model, PROMPTS, config=config, reference=model[0])
    assert all(len(one.prompt.messages) == 1 for one in found.rollouts)
    assert found.metrics["kl_k3"] > 0 and "context" in found.rollouts[0].scores
    with pytest.raises(DataError, match="an example is also an evaluation prompt"):
        posttrain.evaluate_model(*model, ["aa", "b"], config=config)


def test_samples_are_scored_and_their_steps_labelled(model: tuple[Any, Any]) -> None:
    def fails_on_bb(rollouts: Sequence[Any]) -> list[Any]:
        return [Score(0.0, "error", "no") if one.prompt.messages[0]["content"] == "bb" else 1.0 for one in rollouts]

    config = SampleConfig(reward=fails_on_bb, samples=3, max_failed=0.5, sampling=SamplingParams(max_tokens=3))
    found = posttrain.sample_and_score(*model, PROMPTS, config)
    assert [one.messages[0]["content"] for one in found.prompts] == ["a", "ab", "ba"]
    assert len(found.rollouts) == 9 and found.rewards == [1.0] * 9 and not found.steps
    steps = config.model_copy(update={"steps": StepLabels(separator="a", samples=1, continuations=1)})
    labelled = posttrain.sample_and_score(*model, PROMPTS[:3], steps).steps
    assert all(step.right for step in labelled)


def test_likelihoods_of_pairs_options_and_texts(model: tuple[Any, Any], tmp_path: Path) -> None:
    policy, tokenizer = copy.deepcopy(model[0]), model[1]
    pairs = [{"prompt": prompt, "chosen": "aaa", "rejected": "bbb"} for prompt in PROMPTS]
    asked = [{"prompt": one, "answer": "aaa", "info": {"options": ["aaa", "bbb"]}} for one in PROMPTS]
    rows = [{"prompt": prompt, "completion": "aaa"} for prompt in PROMPTS]
    posttrain.train_model(policy, tokenizer, rows, epochs=30, batch_size=2, optimizer={"lr": 1e-2})
    for given, kind in ((pairs, "pairs"), (asked, "prompts")):
        found = posttrain.evaluate_likelihood(policy, tokenizer, given, kind)
        assert found.metrics["score"] == 1.0 and not found.greedy
    same = posttrain.evaluate_likelihood(policy, tokenizer, pairs, "pairs", reference=policy)
    assert same.metrics["margin"] == pytest.approx(0, abs=1e-5)
    text = [{"text": "abab"}, {"text": "ba"}]
    assert posttrain.evaluate_likelihood(policy, tokenizer, text, "corpus").metrics["bits_per_byte"] > 0
    scorer = posttrain.reward_model(model[0])
    posttrain.train_model(scorer, tokenizer, pairs, "reward", epochs=20, optimizer={"lr": 1e-2}, output=tmp_path)
    judged = posttrain.evaluate_likelihood(tmp_path / "model", None, pairs, "pairs")
    assert judged.metrics["score"] == 1.0 and judged.metrics["margin"] > 0
    with pytest.raises(DataError, match="is a reward model, which cannot compute the likelihood"):
        posttrain.evaluate_likelihood(tmp_path / "model", None, text, "corpus")
    with pytest.raises(ParamsError, match="unknown kind"):
        posttrain.evaluate_likelihood(policy, tokenizer, pairs, "chat")  # type: ignore[arg-type]


def test_a_reference_in_the_current_folder_is_not_taken_for_the_policy(
    model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model of the caller's has no folder, and `Path() == Path(".")`."""
    monkeypatch.chdir(tiny_folder(tmp_path / "other", seed=9))
    found = posttrain.evaluate_model(*model, PROMPTS, starts_with_a, samples=2, max_tokens=3, reference=".")
    assert found.metrics["kl_k3"] > 0
