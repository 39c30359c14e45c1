"""Runs of every stage that two processes share, by `dvc repro` and as a flow: the results of one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.pipeline.test_adapters import edit
from tests.workspace import dvc, run

ROLLOUT = {"rounds": 4, "prompts": 8, "group_size": 4, "minibatches": 2}
SAMPLED = {
    "start": "sft/main", "data": "two_step/prompts", "corpus": "none", "reward_model": "none",
    "reward": {"correct": 1.0, "format": 0.2}, "rollout": ROLLOUT, "optimizer": {"lr": 3e-4},
}  # fmt: skip
RUNS: dict[str, dict[str, Any]] = {
    "sft": {"start": "base/tiny", "data": "two_step/chat", "epochs": 0.5, "optimizer": {"lr": 1e-3}},
    "reward": {
        "start": "sft/main", "data": "compared/pairs", "feedback": "none", "demonstrations": "two_step/chat",
        "epochs": 0.3,
    },
    "preference": {"algorithm": "dpo", "start": "sft/main", "data": "compared/pairs", "epochs": 0.3},
    "online": {
        **SAMPLED, "algorithm": "ppo", "reward_model": "reward/one", "reward": {"model": 1.0, "correct": 1.0},
        "watch": {"every": 4, "prompts": 16, "keep": "best"},
    },
    "offline": {
        "algorithm": "grpo", "start": "sft/main", "data": "online/one", "correction": "truncate", "epochs": 0.5,
    },
    "distill": {
        **SAMPLED, "algorithm": "distill", "start": "base/tiny", "teacher": "sft/main", "demonstrations": "none",
        "own": 1.0,
    },
}  # fmt: skip
CLOSE = 2e-4
"""AdamW divides tiny gradients by their size, which magnifies rounding."""


def weights_differ(workspace: Path, stage: str) -> float:
    one, two = (load_file(str(workspace / f"models/{stage}/{name}/model.safetensors")) for name in ("one", "two"))
    return max(float((one[name] - two[name]).abs().max()) for name in one)


@pytest.mark.slow
def test_two_processes_give_the_results_of_one_in_every_stage(own_workspace: Path) -> None:
    def shared(params: Any) -> None:
        for stage, settings in RUNS.items():
            runs = params.setdefault(stage, {}).setdefault("runs", {})
            kept = {"main": runs["main"]} if stage == "sft" else {}
            settings = {name: value for name, value in settings.items() if name != "corpus" or stage != "distill"}
            params[stage]["runs"] = {**kept, "one": settings, "two": {**settings, "processes": 2}}
        params["evaluate"]["policies"] = {"one": "online/one", "two": "online/two"}
        params.get("report", {}).pop("runs", None)

    edit(own_workspace, shared)
    done = dvc(own_workspace, "repro")
    assert done.returncode == 0, done.stdout
    for stage in RUNS:
        assert weights_differ(own_workspace, stage) < CLOSE, stage
        record = json.loads((own_workspace / f"records/{stage}/two.json").read_text(encoding="utf-8"))
        assert record["processes"] == "2"
    refused = run(own_workspace, "python", "-m", "posttrain", "replay", "online/two")
    assert refused.returncode == 1 and "2 processes" in refused.stdout

    edit(own_workspace, lambda params: params["sft"]["runs"]["two"].update(seed=1))
    done = run(own_workspace, "python", "-m", "flows.pipeline")
    assert done.returncode == 0, done.stdout
    assert dvc(own_workspace, "status", "sft@two").stdout.strip().endswith("up to date.")
