"""Adapters through the whole pipeline: trained, evaluated, started from, merged; by `dvc repro` and as a flow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.workspace import dvc, run

ONLINE: dict[str, Any] = {
    "algorithm": "grpo",
    "start": "sft/lora",
    "data": "two_step/prompts",
    "corpus": "none",
    "reward_model": "none",
    "kl": {"beta": 0.02},
    "reward": {"correct": 1.0, "format": 0.2},
    "adapter": {"type": "lora", "rank": 8},
    "rollout": {"rounds": 40, "prompts": 8, "group_size": 8, "minibatches": 2},
    "optimizer": {"lr": 3e-3, "schedule": "constant"},
}
REWARD = {
    "start": "sft/lora",
    "data": "compared/pairs",
    "feedback": "none",
    "demonstrations": "none",
    "adapter": "lora",
}
"""A reward model of the policy that has an adapter."""


def edit(workspace: Path, change: Any) -> None:
    yaml, file = YAML(typ="safe", pure=True), workspace / "params.yaml"
    params = yaml.load(file.read_text(encoding="utf-8"))
    change(params)
    file.write_text(json.dumps(params), encoding="utf-8")


def score(workspace: Path, label: str) -> float:
    metrics = json.loads((workspace / f"results/{label}/metrics.json").read_text(encoding="utf-8"))
    return float(metrics["score"])


@pytest.mark.slow
def test_adapters_pass_the_whole_pipeline(own_workspace: Path) -> None:
    def adapted(params: Any) -> None:
        lora = {"type": "lora", "rank": 8}
        rates = {"optimizer": {"lr": 1.5e-2}}
        params["sft"]["runs"]["lora"] = {**params["sft"]["runs"]["main"], "adapter": lora, **rates}
        params["sft"]["runs"]["merged"] = {**params["sft"]["runs"]["lora"], "adapter": {**lora, "merge": True}}
        params["reward"]["runs"]["lora"] = REWARD
        params["online"]["runs"] = {"grpo_lora": ONLINE}
        params["evaluate"]["policies"] = {
            "base": "base/tiny", "lora": "sft/lora", "merged": "sft/merged", "grpo_lora": "online/grpo_lora",
        }  # fmt: skip

    edit(own_workspace, adapted)
    done = dvc(own_workspace, "repro")
    assert done.returncode == 0, done.stdout
    models = own_workspace / "models"
    assert not (models / "online/grpo_lora/model.safetensors").exists()
    assert (models / "sft/merged/model.safetensors").exists()
    assert score(own_workspace, "lora") == score(own_workspace, "merged"), "the merged model is another policy"
    assert score(own_workspace, "grpo_lora") > score(own_workspace, "lora") + 0.02 > score(own_workspace, "base") + 0.1
    accuracy = json.loads((own_workspace / "metrics/reward/lora.json").read_text())["heldout_accuracy"]
    assert accuracy > 0.6, "a reward model that starts from an adapter learns nothing"

    replayed = run(own_workspace, "python", "-m", "posttrain", "replay", "online/grpo_lora", "--step", "3")
    assert replayed.returncode == 0 and "bit for bit" in replayed.stdout, replayed.stdout

    edit(own_workspace, lambda params: params["online"]["runs"]["grpo_lora"].update(seed=1))
    done = run(own_workspace, "python", "-m", "flows.pipeline")
    assert done.returncode == 0, done.stdout
    assert dvc(own_workspace, "status", "online@grpo_lora", "evaluate@grpo_lora").stdout.strip().endswith("up to date.")
