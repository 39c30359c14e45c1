"""`sample_and_score`: the samples of each prompt with their rewards."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import posttrain
from posttrain.api.scored import sample_and_score
from posttrain.errors import ParamsError
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.scored import SampleConfig, ScoredSamples
from tests.library.models.tiny import tiny_folder


def length(rollouts: Sequence[Any]) -> list[float]:
    return [float(len(one.text)) for one in rollouts]


def test_each_prompt_is_sampled_and_scored(tmp_path: Path) -> None:
    config = SampleConfig(reward={"length": length}, samples=2, sampling=SamplingParams(max_tokens=3))
    own = posttrain.load_model(tiny_folder(tmp_path))
    found = sample_and_score(*own, ["1+1", "2+2"], config)
    assert isinstance(found, ScoredSamples)
    assert [one.messages[0]["content"] for one in found.prompts] == ["1+1", "2+2"]
    assert [one.sample for one in found.rollouts] == [0, 1, 0, 1] and found.rewards == length(found.rollouts)
    policy = posttrain.load_frozen(tmp_path / "model", config)
    again = sample_and_score(policy, None, ["1+1", "2+2"], config)
    assert [one.text for one in again.rollouts] == [one.text for one in found.rollouts]
    with pytest.raises(ParamsError, match="it is a dict, but sample_and_score expects"):
        sample_and_score(*own, ["1+1"], {"samples": 2})  # type: ignore[arg-type]
