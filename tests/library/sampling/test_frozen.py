"""The settings of a policy that is sampled and not trained, and its engine."""

from __future__ import annotations

from typing import Any

from posttrain.models.device import DeviceParams, Runtime
from posttrain.sampling.engines import SampledModel
from posttrain.sampling.frozen import FrozenSampling, engine_of, gap_of
from posttrain.sampling.sampler import SamplingParams
from posttrain.text.stops import Stops
from tests.library.models.tiny import rollout_of, tiny_model


def test_the_engine_of_this_process() -> None:
    model, runtime = tiny_model(), Runtime(DeviceParams(device="cpu"))
    text: Any = type("Text", (), {"stops": Stops((5,), str), "context": None})()
    policy: Any = SampledModel(model, None, text, runtime)  # type: ignore[arg-type]
    config = FrozenSampling()
    with engine_of(config, "here", "v1")(policy, SamplingParams(), [rollout_of("").prompt]) as sampler:
        assert sampler.version == "v1" and "exact" in sampler.can
        assert gap_of(sampler, policy, [], 1.0, "here") == {}
