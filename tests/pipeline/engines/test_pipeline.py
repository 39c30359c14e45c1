"""Runs with an engine or one round ahead in a real pipeline: killed and resumed to the same bytes, each prompt once."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import polars as pl
import psutil
import pytest

from posttrain.files import file_digest
from posttrain.sampling.vllm.process import PYTHON
from posttrain.settings.plain import merge
from tests.pipeline.engines.support import SERVER
from tests.pipeline.engines.test_process import GONE_S, running
from tests.pipeline.test_adapters import edit
from tests.workspace import dvc, environment

ROLLOUT = {"rounds": 8, "prompts": 8, "group_size": 4, "minibatches": 2, "ahead": 1}
OUTPUTS = ("models/online/grpo", "rollouts/online/grpo", "plots/online/grpo.csv", "metrics/online/grpo.json")


def outputs(workspace: Path) -> dict[str, str]:
    files = [file for name in OUTPUTS for file in (workspace / name, *(workspace / name).rglob("*")) if file.is_file()]
    return {str(file.relative_to(workspace)): file_digest(file) for file in files}


def checkpoints(workspace: Path) -> set[Path]:
    return {*workspace.glob("checkpoints/online/grpo/*/step-*/sums.json")}


def kill_in_the_middle(workspace: Path) -> None:
    """Run the stage, and kill it with SIGKILL when it has a checkpoint and goes on."""
    before = checkpoints(workspace)
    command = [sys.executable, "-m", "dvc", "repro", "--single-item", "code", "online@grpo"]
    with subprocess.Popen(command, cwd=workspace, env=environment(), start_new_session=True) as one:
        while not checkpoints(workspace) - before:
            assert one.poll() is None, "it ended before it was killed"
            time.sleep(0.02)
        family = [process.pid for process in psutil.Process(one.pid).children(recursive=True)]
        os.killpg(one.pid, signal.SIGKILL)
    gone = time.monotonic() + GONE_S
    while time.monotonic() < gone and any(map(running, family)):
        time.sleep(0.05)
    assert len(family) > 1 and not any(map(running, family)), "the stage, and the server of its engine, have ended"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("engine", "over"),
    [
        ("builtin", {}),
        ("builtin", {"rollout": {"sampling": {"top_k": 5, "top_p": 0.9}}}),
        ("vllm", {}),
        ("vllm", {"adapter": {"type": "lora", "rank": 4}}),
    ],
)
def test_a_killed_run_one_round_ahead_resumes_to_the_same_bytes(
    engine: str, over: dict[str, Any], own_workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, SERVER)
    monkeypatch.setenv("ENGINE_ALONE", "1")

    def change(params: Any) -> None:
        run = params["online"]["runs"]["grpo"]
        given = {"correction": "truncate", "checkpoint_every": 3, "rollout": {**ROLLOUT, "engine": engine}}
        params["online"]["runs"] = {"grpo": merge({**run, **given}, over)}

    edit(own_workspace, change)
    whole = tmp_path / "whole"
    shutil.copytree(own_workspace, whole, symlinks=True)
    done = dvc(whole, "repro", "--single-item", "code", "online@grpo")
    assert done.returncode == 0, done.stdout

    kill_in_the_middle(own_workspace)
    done = dvc(own_workspace, "repro", "--single-item", "code", "online@grpo")
    assert done.returncode == 0 and "resumes from the checkpoint at step" in done.stdout, done.stdout
    assert outputs(own_workspace) == outputs(whole)

    rows = pl.read_parquet(whole / "rollouts/online/grpo/*.parquet")
    if "rollout" in over:
        counts = rows["kept_counts"].explode()
        assert set(counts) <= set(range(1, 6)) and counts.n_unique() > 1, "tokens are drawn from one to five"
    versions = {f"online@grpo step {max(number - 1, 0) * 2}" for number in range(8)}
    assert set(rows["version"]) == versions
    assert (rows["version"] == [f"online@grpo step {max(number - 1, 0) * 2}" for number in rows["round"]]).all()
    assert (rows["step"] // 2 == rows["round"]).all(), "each round is trained in its turn"
    draws = rows.group_by("draw").agg(pl.col("prompt_id").first(), pl.len())
    assert draws.height == 64 and set(draws["len"]) == {4}
    assert max(Counter(draws["prompt_id"]).values()) == 1, "no prompt comes twice before all have come once"
    curve = pl.read_csv(whole / "plots/online/grpo.csv")
    assert "sampler_kl" in curve.columns and "sampler_gap" not in curve.columns
    record = json.loads((whole / "records/online/grpo.json").read_text(encoding="utf-8"))
    assert record.get("engine") == ("vllm 0.30.0" if engine == "vllm" else None)


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ["none", "lora"])
def test_a_run_of_two_processes_samples_with_two_servers_what_one_does_with_one(
    adapter: str, own_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, SERVER)
    monkeypatch.setenv("ENGINE_ALONE", "1")

    def change(params: Any) -> None:
        run = {**params["online"]["runs"]["grpo"], "correction": "truncate", "adapter": adapter}
        rollout = {**ROLLOUT, "rounds": 4, "engine": "vllm"}
        params["online"]["runs"] = {
            "one": {**run, "rollout": rollout},
            "two": {**run, "rollout": {**rollout, "engine_servers": 2}, "processes": 2},
        }
        params["evaluate"]["policies"] = {"one": "online/one", "two": "online/two"}

    edit(own_workspace, change)
    done = dvc(own_workspace, "repro", "--single-item", "code", "online@one", "online@two")
    assert done.returncode == 0, done.stdout
    one, two = (pl.read_parquet(own_workspace / f"rollouts/online/{name}/*.parquet") for name in ("one", "two"))
    assert one["completion_ids"].to_list() == two["completion_ids"].to_list()
    assert one["version"].str.replace("one", "two").to_list() == two["version"].to_list()
    record = json.loads((own_workspace / "records/online/two.json").read_text(encoding="utf-8"))
    assert record["processes"] == "2" and record["engine"] == "vllm 0.30.0"
    assert record["engine_starts"] == 2, "the first process alone starts both"


@pytest.mark.slow
def test_an_evaluation_samples_with_an_engine(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PYTHON, SERVER)
    before = pl.read_parquet(own_workspace / "results/grpo/rollouts.parquet")

    def change(params: Any) -> None:
        params["evaluate"]["settings"]["engine"] = "vllm"

    edit(own_workspace, change)
    done = dvc(own_workspace, "repro", "--single-item", "code", "evaluate@grpo")
    assert done.returncode == 0, done.stdout
    after = pl.read_parquet(own_workspace / "results/grpo/rollouts.parquet")
    assert after.height == before.height and set(after["greedy"]) == {True, False}
    record = json.loads((own_workspace / "records/evaluate/grpo.json").read_text())
    assert record["engine_starts"] == 1
    greedy = [frame.filter(pl.col("greedy")).sort("prompt_id")["completion"].to_list() for frame in (before, after)]
    assert greedy[0] == greedy[1], "the likeliest tokens are the same"
    metrics = json.loads((own_workspace / "results/grpo/metrics.json").read_text(encoding="utf-8"))
    assert 0 <= metrics["sampler_gap"] < 1e-4


@pytest.mark.slow
def test_held_out_prompts_longer_than_all_trained_ones_are_sampled(
    own_workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PYTHON, SERVER)
    (own_workspace / "my").mkdir(exist_ok=True)
    rows = [
        {"split": split, "prompt": words + f"{n}+1", "answer": str(n + 1)}
        for split, words in (("train", ""), ("heldout", "Please add these two numbers: "))
        for n in range(16)
    ]
    (own_workspace / "my/prompts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")

    def change(params: Any) -> None:
        params["data"]["files"] = {"mine": {"path": "my", "prompts": "prompts.jsonl"}}
        run = {**params["online"]["runs"]["grpo"], "correction": "truncate", "data": "mine/prompts"}
        rollout = {**ROLLOUT, "rounds": 2, "ahead": 0, "engine": "vllm"}
        params["online"]["runs"] = {"grpo": {**run, "rollout": rollout, "watch": {"prompts": 4, "every": 2}}}

    edit(own_workspace, change)
    done = dvc(own_workspace, "repro", "--single-item", "code", "data_files@mine", "online@grpo")
    assert done.returncode == 0, done.stdout
    assert "heldout_true" in pl.read_csv(own_workspace / "plots/online/grpo.csv").columns
