"""The settings of a policy that is sampled and scored, and not trained."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import ScoredSampling, engine_of, gap_of
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.stops import Stops
from tests.library.models.tiny import rollout_of, tiny_model


def short(rollouts: Any) -> list[float]:
    return [-float(len(one.text)) for one in rollouts]


def test_rewards_of_a_script() -> None:
    config = ScoredSampling.model_validate({"reward": {"own": short}, "sampling": {"max_tokens": 7}})
    assert config.terms is config.reward and list(config.terms) == ["own"]
    policy: Any = SampledModel(None, None, None, Runtime(DeviceParams()))  # type: ignore[arg-type]
    scorer = config.scorer(policy, None, "here")
    (scored,) = scorer.score([rollout_of("abc")])
    assert scorer.total(scored) == -3.0
    with pytest.raises(ValueError, match="nothing"):
        ScoredSampling.model_validate({"reward": {"nothing": 1.0}})


def test_the_engine_of_this_process() -> None:
    model, runtime = tiny_model(), Runtime(DeviceParams(device="cpu"))
    text: Any = type("Text", (), {"stops": Stops((5,), str), "context": None})()
    policy: Any = SampledModel(model, None, text, runtime)  # type: ignore[arg-type]
    config = ScoredSampling()
    with engine_of(config, "here", "v1")(policy, SamplingParams(), [rollout_of("").prompt]) as sampler:
        assert sampler.version == "v1" and "exact" in sampler.can
        assert gap_of(sampler, policy, [], 1.0, "here") == {}
