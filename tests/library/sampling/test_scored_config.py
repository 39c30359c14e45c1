"""The settings of a policy that is sampled and scored, and not trained."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.sampling.scored_config import ScoredSampling
from tests.library.models.tiny import rollout_of


def short(rollouts: Any) -> list[float]:
    return [-float(len(one.text)) for one in rollouts]


def test_rewards_of_a_script() -> None:
    config = ScoredSampling.model_validate({"reward": {"own": short}, "sampling": {"max_tokens": 7}})
    assert config.terms is config.reward and list(config.terms) == ["own"]
    scorer = config.scorer(Runtime(DeviceParams()), None, None, "here")
    (scored,) = scorer.score([rollout_of("abc")])
    assert scorer.total(scored) == -3.0
    with pytest.raises(ValueError, match="nothing"):
        ScoredSampling.model_validate({"reward": {"nothing": 1.0}})


def test_rewards_read_the_longest_completion() -> None:
    config = ScoredSampling.model_validate({"reward": {"own": short}, "sampling": {"max_tokens": 7}})
    assert config.scorer(Runtime(DeviceParams()), None, None, "here")._context.max_tokens == 7
