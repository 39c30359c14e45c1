"""The list of stages, and what it says of the runs of params.yaml."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.params.stage_table import (
    STAGES,
    Evaluated,
    curve_runs,
    evaluated,
    group_of,
    groups,
    model_runs,
    models_of_set,
    policies,
    runs_of,
    section_of,
    stage_of,
)
from posttrain.pipeline.runs.sft import SftRun

SETTINGS: dict[str, Any] = {
    "sft": {"runs": {"main": {"start": "base/a"}, "empty": None}},
    "external": {"rollouts": {"logs": {}}},
    "reward": {"sets": {"both": {"one": "reward/a", "two": "reward/inner"}, "inner": {"one": "reward/b"}}},
    "evaluate": {
        "settings": {"data": "t/prompts"},
        "policies": {"sft": "sft/main"},
        "runs": {"own": {"policy": "sft/main", "data": "u/prompts"}},
        "lm_eval": {"arc": {"policy": "sft/main"}},
    },
}
BY_NAME = {stage.name: stage for stage in STAGES}


def test_stages() -> None:
    assert BY_NAME["sft"].settings() is SftRun and BY_NAME["sft"].output("main") == "sft/main"
    assert BY_NAME["lm_eval"].output("arc") == "lm_eval/arc" and BY_NAME["data_files"].output("mine") == "mine"
    assert BY_NAME["evaluate"].shares_settings and not BY_NAME["evaluate_runs"].shares_settings
    assert BY_NAME["lm_eval"].is_listed_result and not BY_NAME["evaluate"].is_listed_result


def test_groups() -> None:
    found = groups()
    assert found["sft"] == ("runs",) and found["evaluate"] == ("settings", "policies", "runs", "ratings", "lm_eval")


def test_runs_of_a_group() -> None:
    assert group_of(SETTINGS, "sft.runs")["empty"] is None and group_of(SETTINGS, "online.runs") == {}
    assert runs_of(SETTINGS, "sft.runs") == {"main": {"start": "base/a"}, "empty": {}}
    for wrong in ({"sft": 3}, {"sft": {"runs": 3}}):
        with pytest.raises(ParamsError, match="is not a mapping"):
            group_of(wrong, "sft.runs")
    with pytest.raises(ParamsError, match=r"sft\.runs\.a is not a mapping"):
        runs_of({"sft": {"runs": {"a": 3}}}, "sft.runs")


def test_models_and_curves() -> None:
    assert list(model_runs(SETTINGS)) == ["sft/main", "sft/empty", "reward/both", "reward/inner"]
    assert list(curve_runs(SETTINGS))[-1] == "external/logs"
    assert models_of_set(SETTINGS, "reward/both") == ["reward/a", "reward/b"]
    assert models_of_set(SETTINGS, "sft/main") == ["sft/main"]


def test_evaluations() -> None:
    assert policies(SETTINGS) == {"sft": "sft/main"}
    assert evaluated(SETTINGS) == {
        "sft": Evaluated("sft/main", "t/prompts", "evaluate@sft"),
        "own": Evaluated("sft/main", "u/prompts", "evaluate_runs@own"),
        "lm_eval/arc": Evaluated("sft/main", "lm-eval", "lm_eval@arc", "documents"),
    }


def test_sections_and_stages() -> None:
    assert section_of(SETTINGS, "sft/main") == "sft.runs.main" and section_of(SETTINGS, "x/y") == "x.y"
    assert stage_of(SETTINGS, "sft/main") == "sft@main" and stage_of(SETTINGS, "x/y") == "x/y"
