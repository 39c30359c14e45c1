"""What vLLM answers is read and checked."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest
import torch
from transformers.models.qwen3_moe.configuration_qwen3_moe import Qwen3MoeConfig

from posttrain.models.files.store import new_model
from posttrain.models.scratch import ScratchParams, scratch_config
from posttrain.sampling.sampler import Request, RoutedSampling, SamplingParams
from posttrain.sampling.vllm.answers import read_completion, read_experts, request_of, router_layers
from posttrain.text.stops import Stops
from tests.library.models.tiny import tiny_model

STOPS = Stops((5,), lambda ids: "".join(chr(97 + number) for number in ids))


def encoded(values: Any) -> str:
    stream = io.BytesIO()
    np.save(stream, np.array(values, dtype=np.int32))
    return base64.b64encode(stream.getvalue()).decode()


def answer(**changes: Any) -> dict[str, Any]:
    given = {"token_ids": [3, 5], "logprobs": [-1.0, -2.0], "prompt_tokens": 2}
    return {**given, **changes}


def mixture() -> Any:
    config: Qwen3MoeConfig = scratch_config(
        ScratchParams(layers=2, width=16, heads=2, feed_forward=8, experts=4), 97, stop=5, pad=None
    )
    return new_model(config, 0)


def test_text_is_asked_for_only_to_find_stop_strings() -> None:
    asked = [
        request_of(Request((1, 2), "p:0"), 2**63 + 7, SamplingParams(max_tokens=4, stop=stop), STOPS, "policy", "3:p:0")
        for stop in ([], ["a", "b", "c", "d", "e"])
    ]
    assert [one["sampling"]["detokenize"] for one in asked] == [False, True]
    assert asked[1]["sampling"]["stop"] == ["a", "b", "c", "d", "e"] and asked[0]["sampling"]["stop_token_ids"] == [5]
    assert asked[0]["sampling"]["seed"] == 7 and asked[0]["prompt"] == [1, 2]


def test_a_completion() -> None:
    found = read_completion(answer(), [1, 2], SamplingParams(max_tokens=4), STOPS, tiny_model())
    assert (found.ids, found.logps, found.finish) == ([3, 5], [-1.0, -2.0], "stop")


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt_tokens": 1}, {"token_ids": [3]}, {"token_ids": [3, 97]}, {"token_ids": [3, 4]},
        {"logprobs": [-1.0, 0.5]}, {"token_ids": [], "logprobs": []},
    ],
)  # fmt: skip
def test_what_is_no_completion(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="do not form a whole completion"):
        read_completion(answer(**changes), [1, 2], SamplingParams(max_tokens=4), STOPS, tiny_model())


def test_experts() -> None:
    experts = [[[1, 0], [2, 3]], [[0, 1], [3, 2]], [[2, 0], [1, 3]]]
    found = read_experts(encoded(experts), 4, [1])
    assert found.tolist() == [[[2, 3]], [[3, 2]], [[1, 3]], [[-1, -1]]] and found.dtype == torch.int16
    with pytest.raises(ValueError, match="do not fit 5 tokens"):
        read_experts(encoded(experts), 5, [1])
    model = mixture()
    assert router_layers(model) == [0, 1]
    params = RoutedSampling(max_tokens=4)
    routed = read_completion(answer(routed_experts=encoded(experts)), [1, 2], params, STOPS, model)
    assert routed.experts is not None and routed.experts[:-1].tolist() == experts
    with pytest.raises(ValueError, match="it has no experts"):
        read_completion(answer(), [1, 2], params, STOPS, model)
