"""Where the models of the page come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.pipeline.report.lineage import differing, labels, made_from

SETTINGS: dict[str, Any] = {
    "data": {"tasks": {"t": {"task": "sums"}}},
    "online": {"runs": {"a": {"algorithm": "grpo", "start": "sft/m", "kl": {"beta": 0.1}}, "b": {"algorithm": "grpo"}}},
    "evaluate": {"policies": {"best": "online/a"}},
}


def test_differing() -> None:
    found = differing(SETTINGS)
    assert found["runs"] == ["best", "online/b"]
    assert found["alike"] == [{"key": "algorithm", "values": ["grpo", "grpo"]}]
    assert found["differ"] == [{"key": "start", "values": ["sft/m", None]}, {"key": "kl.beta", "values": ["0.1", None]}]


def test_labels() -> None:
    assert labels(SETTINGS) == {"online/a": "best", "online/b": "online/b"}


def test_made_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("metrics/online").mkdir(parents=True)
    Path("metrics/online/a.json").write_text(json.dumps({"steps": 3, "list": [1]}))
    data, first, second = made_from(SETTINGS, [])
    assert (data["path"], data["start"], data["settings"]) == ("data/t", "sums", {"task": "sums"})
    assert (first["path"], first["start"], first["numbers"]) == ("online/a", "sft/m", {"steps": 3})
    assert second["numbers"] == {} and second["settings"] == {"algorithm": "grpo"}
