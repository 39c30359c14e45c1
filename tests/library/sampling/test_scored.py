"""Samples of a policy with their scores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy
from posttrain.models.files.text import load_text
from posttrain.rollout import Prompt, Score
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.sampler import SamplingParams, encode_prompts
from posttrain.sampling.scored import SampleConfig, scored_samples
from posttrain.sampling.step_labels import StepLabels
from tests.library.models.tiny import tiny_folder


@pytest.fixture(scope="module")
def policy(tmp_path_factory: pytest.TempPathFactory) -> SampledModel:
    folder: Path = tiny_folder(tmp_path_factory.mktemp("scored"))
    return SampledModel(load_policy(folder), folder, load_text(folder), Runtime(DeviceParams(device="cpu")))


def length(rollouts: Sequence[Any]) -> list[Any]:
    return [
        Score(0.0, "error", "no") if one.prompt.id == "b" and one.sample else float(len(one.text)) for one in rollouts
    ]


def config(**settings: Any) -> SampleConfig:
    given = {"reward": {"length": length}, "samples": 2, "max_failed": 0.5, "sampling": SamplingParams(max_tokens=3)}
    return SampleConfig(**{**given, **settings})


def test_the_longest_completion() -> None:
    assert config().longest == 3
    assert config(steps=StepLabels(separator="a")).longest == 6, "a sample, and a continuation of it"


def test_prompts_with_an_unscored_sample_are_left_out(policy: SampledModel) -> None:
    prompts = encode_prompts(
        policy.text, [Prompt(name, [{"role": "user", "content": f"{name}+1"}], ()) for name in ("a", "b", "c")]
    )
    found = scored_samples(config(), policy, prompts, reward_model=None, name="test", where="here")
    assert [one.id for one in found.prompts] == ["a", "c"]
    assert [(one.prompt.id, one.sample) for one in found.rollouts] == [("a", 0), ("a", 1), ("c", 0), ("c", 1)]
    assert found.rewards == [float(len(one.text)) for one in found.rollouts]
    assert found.steps == [] and found.metrics == {}
    labels = StepLabels(separator="=", samples=1, continuations=1)
    labelled = scored_samples(
        config(steps=labels, pass_score=-1.0), policy, prompts[:1], reward_model=None, name="test", where="here"
    )
    assert all(step.right for step in labelled.steps)
