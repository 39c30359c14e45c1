"""How far a sampler's log-probs are from the model's own."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.rollout import Prompt, Rollout, TokenRow
from posttrain.sampling.agreement import sampler_gap
from tests.library.models.tiny import plain_logps, random_rows, tiny_model

CPU = Runtime(DeviceParams(device="cpu"))


def rollouts(model: Any, shift: float) -> list[Rollout]:
    found = []
    for prompt, completion in zip(*random_rows(40), strict=True):
        logps = (plain_logps(model, [prompt], [completion]) + shift).tolist()
        found.append(Rollout(Prompt("p", [], prompt), 0, TokenRow(prompt, completion), logps, "", "stop"))
    return found


def test_the_mean_and_the_largest_gap(capsys: pytest.CaptureFixture[str]) -> None:
    model = tiny_model()
    assert sampler_gap(model, [], 1.0, CPU, "here") == {}
    near = sampler_gap(model, rollouts(model, 0.0), 1.0, CPU, "here")
    assert near == {"sampler_gap": pytest.approx(0, abs=1e-4), "sampler_gap_max": pytest.approx(0, abs=1e-3)}
    assert capsys.readouterr().err == ""
    far = sampler_gap(model, rollouts(model, 0.25), 1.0, CPU, "here")
    assert far == {"sampler_gap": pytest.approx(0.25, abs=1e-3), "sampler_gap_max": pytest.approx(0.25, abs=1e-2)}
    assert capsys.readouterr().err.startswith("here: the engine's log-probs differ from the model's own by 0.25 nats")
