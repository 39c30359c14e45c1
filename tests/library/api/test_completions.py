"""`sample_completions`, whose result is scored by `score_completions` as often as needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain import CompletionsConfig, EvaluateConfig
from posttrain.errors import DataError, ParamsError
from posttrain.sampling.sampler import SamplingParams
from tests.library.models.tiny import tiny_folder

ASKED = (("1 + 1", "2"), ("2 + 1", "in words"), ("3", "3"))
PROMPTS = [{"prompt": prompt, "answer": answer} for prompt, answer in ASKED]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    return posttrain.load_model(tiny_folder(tmp_path_factory.mktemp("model")))


def starts_with_a(rollouts: Sequence[Any]) -> list[float]:
    return [float(one.text.startswith("a")) for one in rollouts]


def test_sampling_and_scoring_apart_give_what_an_evaluation_gives(model: tuple[Any, Any]) -> None:
    sampling = SamplingParams(max_tokens=3)
    found = posttrain.sample_completions(
        *model, PROMPTS, CompletionsConfig(samples=2, sampling=sampling), reference=model[0]
    )
    assert len(found.rollouts) == 6 and len(found.greedy) == 3 and not found.rollouts[0].scores
    scored = posttrain.score_completions(found, starts_with_a)
    config = EvaluateConfig(reward=starts_with_a, samples=2, sampling=sampling)
    whole = posttrain.evaluate_model(*model, PROMPTS, config=config, reference=model[0])
    assert scored.metrics == whole.metrics and "kl_k3" in scored.metrics
    assert whole.completions is not None
    again = posttrain.score_completions(whole.completions, {"length": {"limit": 3, "weight": 1.0}})
    assert [one.text for one in again.rollouts] == [one.text for one in found.rollouts]
    lengths = [len(one.row.rest) for one in found.rollouts]
    assert again.metrics["score"] == pytest.approx(sum(1 - length / 3 for length in lengths) / 6)


def test_prompts_that_no_reward_can_judge_are_left_out(
    model: tuple[Any, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    found = posttrain.sample_completions(*model, PROMPTS, CompletionsConfig(samples=2))
    scored = posttrain.score_completions(found, {"correct": 1.0})
    assert len(scored.greedy) == 2 and "1 prompts are left out" in capsys.readouterr().err
    none = posttrain.sample_completions(*model, ["a", "b"], CompletionsConfig(samples=2))
    unmeasured = posttrain.score_completions(none, {"correct": 1.0})
    assert unmeasured.metrics["judged"] == 0.0
    assert "no prompt has an answer, so reward 'correct' is not measured" in capsys.readouterr().err


def test_misuse_is_named(model: tuple[Any, Any]) -> None:
    with pytest.raises(ParamsError, match="CompletionsConfig"):
        posttrain.sample_completions(*model, PROMPTS, EvaluateConfig)  # type: ignore[arg-type]
    found = posttrain.sample_completions(*model, PROMPTS, CompletionsConfig(samples=1))
    with pytest.raises(ParamsError, match="there is no reward"):
        posttrain.score_completions(found)
    with pytest.raises(ParamsError, match="reward model"):
        posttrain.score_completions(found, {"model": 1.0})
    with pytest.raises(DataError, match="this is list, not the completions of a model"):
        posttrain.score_completions(found.rollouts, starts_with_a)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="there are no prompts"):
        posttrain.sample_completions(*model, [], CompletionsConfig())


def test_a_folder_is_a_reference(model: tuple[Any, Any], tmp_path: Path) -> None:
    other = tiny_folder(tmp_path / "other", seed=1)
    found = posttrain.sample_completions(*model, PROMPTS, CompletionsConfig(samples=1), reference=other)
    assert found.metrics["kl_k3"] > 0.01
