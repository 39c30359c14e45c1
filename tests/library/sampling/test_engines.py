"""Engines by name, and settings that an engine cannot have."""

from __future__ import annotations

import re
from typing import Any

import pytest

from posttrain.sampling.engines import ENGINES, _known, refuse_sampling
from posttrain.sampling.sampler import SamplingParams


def test_names_of_engines() -> None:
    assert _known("builtin") == "builtin" and _known("vllm") == "vllm"
    with pytest.raises(ValueError, match="Did you mean 'builtin'"):
        _known("buildin")


@pytest.mark.parametrize(
    ("name", "sampling", "args", "servers", "fault"),
    [
        ("builtin", {}, {"seed": 1}, 1, "engine builtin has no extra settings"),
        ("builtin", {}, {}, 2, "engine builtin has no servers"),
        (
            "vllm",
            {"top_p": 0.5},
            {},
            1,
            "engine vllm cannot have sampling.top_p = 0.5. Change it, or use engine builtin",
        ),
        ("vllm", {"top_k": 3}, {}, 1, "engine vllm cannot have sampling.top_k = 3"),
        ("vllm", {}, {"Bad Name": 1}, 1, "expected the name of a setting of vLLM and its value"),
        ("vllm", {}, {"tensor-parallel-size": 2}, [[0, 1]], "engine_servers has the GPUs of each server"),
        ("vllm", {}, {"seed": 1}, 1, "Remove it"),
        ("vllm", {}, {}, 0, "engine_servers = 0: expected the number of servers"),
        ("vllm", {}, {}, [[0], [0]], "each GPU once on a host"),
        ("vllm", {}, {}, [[0], []], "engine_servers = [[0], []]: expected the number of servers"),
    ],
)
def test_settings_that_an_engine_cannot_have(
    name: str, sampling: dict[str, Any], args: dict[str, Any], servers: Any, fault: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(fault)):
        refuse_sampling(name, SamplingParams(**sampling), args, servers)


def test_settings_that_an_engine_can_have() -> None:
    refuse_sampling("builtin", SamplingParams(top_p=0.5, top_k=3, stop=["a"]), {}, 1)
    refuse_sampling("vllm", SamplingParams(stop=["a"]), {"quantization": "fp8"}, [[0], [1, 2]])
    ENGINES["builtin"].check()
