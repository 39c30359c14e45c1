"""How a sample of Inspect's ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from posttrain.plugins.inspect import inspect_samples_child as module


def sample(**more: Any) -> SimpleNamespace:
    output = SimpleNamespace(completion="2", choices=[1], stop_reason="stop", usage=SimpleNamespace(output_tokens=3))
    given = {"id": "p", "epoch": 1, "target": "2", "input": "1+1?", "scores": {}, "error": None, "limit": None}
    return SimpleNamespace(**{**given, "output": output, **more})


def value(found: Any) -> SimpleNamespace:
    return SimpleNamespace(value=found)


@pytest.mark.parametrize(
    ("more", "finish"),
    [
        ({}, "stop"),
        ({"error": "e"}, "error"),
        ({"limit": SimpleNamespace(type="time")}, "timeout"),
        ({"limit": SimpleNamespace(type="token")}, "length"),
        ({"output": SimpleNamespace(choices=[1], stop_reason="max_tokens")}, "length"),
        ({"output": SimpleNamespace(choices=[], stop_reason="max_tokens")}, "stop"),
    ],
)
def test_how_a_sample_ended(more: dict[str, Any], finish: str) -> None:
    assert module._finish(sample(**more)) == finish
