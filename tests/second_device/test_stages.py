"""Stages on the second device write the losses that they write on the CPU, step by step."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
import yaml

from tests.conftest import SMOKE_PARAMS
from tests.workspace import make_workspace, run, stage

TASKS = {"n_corpus": 1500, "n_corpus_heldout": 40, "n_sft": 96, "n_sft_heldout": 32, "n_rl": 60, "n_heldout": 30}
STAGE = Path(__file__).with_name("stage.py")
PAIRS = "my/pairs.jsonl"
OTHER_DIGITS = str.maketrans("0123456789", "1234567890")
GAPS = {"fp32": 1e-5, "bf16": 5e-2}
"""Of a loss, relative to the CPU's or to 0.1."""


def params(device: str, precision: str) -> dict[str, Any]:
    """recipes/smoke.yaml made smaller, on one device and in one number format."""
    made: dict[str, Any] = yaml.safe_load(SMOKE_PARAMS.read_text(encoding="utf-8"))
    made["data"] = {"tasks": made["data"]["tasks"], "files": {"mine": {"path": "my", "pairs": "pairs.jsonl"}}}
    made["data"]["tasks"]["two_step"] |= {**TASKS, "n_test": 30}
    made["base"]["scratch"]["tiny"] |= {"steps": 60}
    sft, reward, dpo = (made[name]["runs"] for name in ("sft", "reward", "preference"))
    sft["main"] |= {"epochs": 1.0}
    sft["qlora"] = {**sft["main"], "adapter": {"type": "qlora", "rank": 4}, "activations": "offload"}
    reward["main"] |= {"data": "mine/pairs", "epochs": 1.0}
    dpo["dpo"] |= {"data": "mine/pairs"}
    grpo = made["online"]["runs"]["grpo"]
    grpo |= {"reward_model": "reward/main", "reward": {"model": 1.0}}
    grpo["rollout"] = {"rounds": 2, "prompts": 6, "group_size": 6, "minibatches": 2}
    made["evaluate"]["policies"] = {"sft": "sft/main"}
    for one in (made["base"]["scratch"]["tiny"], *sft.values(), *reward.values(), *dpo.values(), grpo):
        one["device"] = {"device": device, "precision": precision}
    return made


def ran(work: Path, name: str, *arguments: str, device: str = "cpu", precision: str = "fp32") -> Path:
    """The workspace after a stage has run in it."""
    (work / "params.yaml").write_text(yaml.safe_dump(params(device, precision)), encoding="utf-8")
    on_device = [sys.executable, str(STAGE), name, *arguments]
    done = stage(work, name, *arguments) if device == "cpu" else run(work, *on_device)
    assert done.returncode == 0, done.stdout[-4000:]
    return work


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with tables and a start model."""
    work = make_workspace(tmp_path_factory.mktemp("stages") / "base", SMOKE_PARAMS)
    ran(work, "data_tasks", "two_step")
    lines = [
        {"prompt": row["messages"][0]["content"], "chosen": answer, "rejected": answer.translate(OTHER_DIGITS)}
        | {"split": row["split"]}
        for row in pl.read_parquet(work / "data/two_step/chat.parquet").to_dicts()
        for answer in [row["messages"][-1]["content"]]
    ]
    (work / PAIRS).parent.mkdir()
    (work / PAIRS).write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return ran(ran(work, "data_files", "mine"), "base_scratch", "tiny")


@pytest.fixture(scope="module")
def trained(base: Path) -> Path:
    """The same with a policy and a reward model that a CPU has trained."""
    work = base.with_name("trained")
    shutil.copytree(base, work, symlinks=True)
    return ran(ran(work, "sft", "main"), "reward", "main")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("start", "name", "chosen", "precision"),
    [
        ("base", "sft", "main", "fp32"), ("base", "sft", "main", "bf16"), ("base", "sft", "qlora", "fp32"),
        ("trained", "reward", "main", "fp32"), ("trained", "preference", "dpo", "fp32"),
        ("trained", "preference", "dpo", "bf16"), ("trained", "online", "grpo", "fp32"),
    ],
)  # fmt: skip
def test_losses_are_those_of_the_cpu(
    start: str, name: str, chosen: str, precision: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    found = {}
    for device in ("cpu", "cuda"):
        work = tmp_path / device
        shutil.copytree(request.getfixturevalue(start), work, symlinks=True)
        ran(work, name, chosen, device=device, precision=precision)
        with (work / "plots" / name / f"{chosen}.csv").open(encoding="utf-8") as file:
            found[device] = [float(row["loss"]) for row in csv.DictReader(file)]
        record = json.loads((work / "records" / name / f"{chosen}.json").read_text(encoding="utf-8"))
        assert (record["device"], record["precision"]) == (
            {"cpu": "cpu", "cuda": torch.cuda.get_device_name()}[device],
            precision,
        )
    for expected, loss in zip(found["cpu"], found["cuda"], strict=True):
        assert abs(loss - expected) <= GAPS[precision] * max(abs(expected), 0.1)
    assert len(found["cpu"]) > 1
