"""A stand-in for the classes of Inspect that its children use: what they were given is kept as attributes."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

Turns = list[dict[str, str]]


class EvalSample(SimpleNamespace):
    """A sample; `messages` is the field whose type the child reads."""

    class _Fields(BaseModel):
        messages: Turns

    model_fields = _Fields.model_fields


class ModelOutput:
    """The output of a model."""

    @staticmethod
    def from_content(model: str, content: str, stop_reason: str) -> SimpleNamespace:
        return SimpleNamespace(model=model, completion=content, stop_reason=stop_reason)


def install(monkeypatch: pytest.MonkeyPatch, **log: Any) -> None:
    """Put modules of these names in the place of Inspect's. `log`: more functions of inspect_ai.log."""
    names = ("EvalConfig", "EvalDataset", "EvalLog", "EvalResults", "EvalSpec", "EvalStats", "EvalMetric", "EvalScore")
    parts: dict[str, dict[str, Any]] = {
        "inspect_ai": {},
        "inspect_ai.log": {**dict.fromkeys(names, SimpleNamespace), "EvalSample": EvalSample, **log},
        "inspect_ai.model": {"ChatMessageAssistant": SimpleNamespace, "ModelOutput": ModelOutput},
        "inspect_ai.scorer": {"Score": SimpleNamespace, "value_to_float": lambda: to_float},
    }
    for name, content in parts.items():
        module = ModuleType(name)
        vars(module).update(content)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("importlib.metadata.version", lambda name: f"{name} 1")


def to_float(value: Any) -> float:
    """As Inspect reads letters."""
    return {"C": 1.0, "P": 0.5, "I": 0.0, "N": 0.0}.get(value, 0.0) if isinstance(value, str) else float(value)
