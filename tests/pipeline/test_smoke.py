"""The whole pipeline by a real `dvc repro`: what it makes, what it learns, and what it runs again."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from platform import python_version
from typing import Any

import polars as pl
import pytest
from ruamel.yaml import YAML
from safetensors.torch import load_file

from posttrain.data.columns import Kind
from posttrain.pipeline.tables.store import check_disjoint, read_table
from tests.workspace import dvc, stage

POLICIES = {"base": "base/tiny", "sft": "sft/main", "dpo": "preference/dpo", "grpo": "online/grpo"}


def metrics(workspace: Path, policy: str) -> dict[str, float]:
    found: dict[str, float] = json.loads((workspace / "results" / policy / "metrics.json").read_text())
    return found


def ran(output: str) -> set[str]:
    """The stages that a repro really executed, but for `code`, which runs whenever params.yaml changes."""
    return set(re.findall(r"Running stage '([^']+)'", output)) - {"code"}


def test_preference_and_online_training_beat_sft_on_held_out_problems(smoke_workspace: Path) -> None:
    sft = metrics(smoke_workspace, "sft")
    assert metrics(smoke_workspace, "base")["score"] < sft["score_low"]
    for policy in ("dpo", "grpo"):
        assert metrics(smoke_workspace, policy)["score_low"] > sft["score_high"], policy


def test_every_table_is_checked_and_no_problem_is_in_two_splits(smoke_workspace: Path) -> None:
    data = smoke_workspace / "data"
    kinds: dict[Kind, str] = {"chat": "two_step", "prompts": "two_step", "pairs": "compared", "feedback": "compared"}
    tables = {str(kind): read_table(data / run / f"{kind}.parquet", kind) for kind, run in kinds.items()}
    check_disjoint(tables)
    assert read_table(data / "two_step/corpus.parquet", "corpus").height > 1000
    for policy in POLICIES:
        rollouts = read_table(smoke_workspace / "results" / policy / "rollouts.parquet", "rollouts")
        test_ids = set(tables["prompts"].filter(split="test")["id"])
        assert set(rollouts["prompt_id"]) <= test_ids


def test_a_metric_can_be_traced_to_its_rows(smoke_workspace: Path) -> None:
    for policy in POLICIES:
        rollouts = pl.read_parquet(smoke_workspace / "results" / policy / "rollouts.parquet")
        mean = rollouts.filter(~pl.col("greedy"))["reward"].mean()
        assert mean == pytest.approx(metrics(smoke_workspace, policy)["score"], abs=1e-4)


@pytest.mark.parametrize("folder", POLICIES.values())
def test_models_load_with_from_pretrained(smoke_workspace: Path, folder: str) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    place = smoke_workspace / "models" / folder
    model = AutoModelForCausalLM.from_pretrained(place)
    saved = load_file(place / "model.safetensors")
    listed = json.loads((place / "manifest.json").read_text())
    assert set(listed) == {"posttrain_format", *saved, "config.json", "tokenizer.json", "tokenizer_config.json"}
    for name, tensor in saved.items():
        assert model.state_dict()[name].equal(tensor), name
    chat = [{"role": "user", "content": "Ann has 2 coins."}]
    ids = AutoTokenizer.from_pretrained(place).apply_chat_template(chat, add_generation_prompt=True)["input_ids"]
    assert len(ids) > 5


def test_every_stage_records_what_made_its_results(smoke_workspace: Path) -> None:
    lock = YAML(typ="safe", pure=True).load((smoke_workspace / "dvc.lock").read_text(encoding="utf-8"))
    for name, entry in lock["stages"].items():
        if name == "code":
            continue
        records = [out["path"] for out in entry["outs"] if out["path"].startswith("records/")]
        assert len(records) == 1, name
        record = json.loads((smoke_workspace / records[0]).read_text())
        assert record["versions"]["torch"] == version("torch")
        assert python_version().startswith(f"{record['versions']['python']}.")
        assert f"stages/{name.partition('@')[0]}.py" in record["code"]["files"] and record["platform"]
        if name != "report":
            assert record["seed"] >= 0, name
        if not name.startswith(("data_tasks", "evaluate", "report")):  # rewards by rules use no device
            assert (record["device"], record["precision"], record["threads"]) == ("cpu", "fp32", 1), name


def test_every_training_stage_logs_what_plots_draw(smoke_workspace: Path) -> None:
    expected = {
        "base/tiny": {"loss", "grad_norm", "lr"},
        "sft/main": {"loss"},
        "reward/main": {"loss", "accuracy"},
        "preference/dpo": {"loss", "accuracy", "margin"},
        "online/grpo": {"loss", "reward", "kl_k1", "kl_k2", "kl_k3", "entropy", "clip_fraction", "length"},
    }
    for name, columns in expected.items():
        log = pl.read_csv(smoke_workspace / "plots" / f"{name}.csv")
        assert columns <= set(log.columns), name
        assert log["step"].to_list() == list(range(log.height))
        assert log.select(pl.col(pl.Float64).is_finite().all()).row(0) == (True,) * len(
            log.select(pl.col(pl.Float64)).columns
        )


def test_dvc_shows_metrics_params_and_plots(smoke_workspace: Path) -> None:
    shown = json.loads(_quiet(dvc(smoke_workspace, "metrics", "show", "--json")))
    files = next(iter(shown.values()))["data"]
    # Another metric would take the settings' room in `dvc exp show`.
    assert {file: list(one["data"]) for file, one in files.items()} == {
        f"results/{label}/headline.json": [label]
        for label in ("base", "dpo", "grpo", "sft")  # base scores 0: no answer can be read
    }
    one = json.loads(_quiet(dvc(smoke_workspace, "metrics", "show", "--json", "results/sft/metrics.json")))
    assert next(iter(one.values()))["data"]["results/sft/metrics.json"]["data"] == metrics(smoke_workspace, "sft")
    plots = json.loads(_quiet(dvc(smoke_workspace, "plots", "show", "--json")))
    assert [*plots["data"]] == ["report/scores.csv", "report/curves.csv"], "each curve once, in the plot of all runs"


def test_a_second_repro_runs_nothing(smoke_workspace: Path) -> None:
    done = dvc(smoke_workspace, "repro")
    assert done.returncode == 0, done.stdout
    assert ran(done.stdout) == set()


@pytest.mark.slow
def test_a_changed_parameter_reruns_its_run_and_its_undo_comes_from_the_cache(own_workspace: Path) -> None:
    params = own_workspace / "params.yaml"
    before = params.read_text()
    lock = (own_workspace / "dvc.lock").read_text()
    params.write_text(before.replace("kl: {beta: 0.02}", "kl: {beta: 0.05}").replace("rounds: 25", "rounds: 2"))
    assert params.read_text() != before
    changed = dvc(own_workspace, "repro")
    assert ran(changed.stdout) == {"online@grpo", "completions@grpo", "evaluate@grpo", "report"}, changed.stdout
    params.write_text(before)
    back = dvc(own_workspace, "repro")
    assert ran(back.stdout) == {"report"}, back.stdout  # DVC caches no stage with a file in git: its summary
    assert (own_workspace / "dvc.lock").read_text() == lock


def test_adding_a_run_adds_its_stages(own_workspace: Path) -> None:
    params = own_workspace / "params.yaml"
    inputs = "start: sft/main, data: two_step/prompts, corpus: none, reward_model: none"
    extra = f"    mine: {{algorithm: dapo, {inputs}, rollout: {{rounds: 1, prompts: 2, minibatches: 1}}}}\n"
    text = params.read_text().replace("\nevaluate:", f"{extra}\nevaluate:")
    params.write_text(f"{text.rstrip()}\n    mine: online/mine\n")
    listed = dvc(own_workspace, "stage", "list", "--name-only").stdout.split()
    assert {"online@mine", "evaluate@mine"} <= set(listed)
    stale = json.loads(_quiet(dvc(own_workspace, "status", "--json")))
    assert set(stale) == {"code", "online@mine", "completions@mine", "evaluate@mine", "report"}


@pytest.mark.slow
def test_a_killed_stage_resumes_and_ends_with_the_same_bytes(own_workspace: Path) -> None:
    """SIGKILL of the stage after its first checkpoint; the next repro ends as if nothing had happened."""
    import os
    import signal
    import subprocess
    import sys
    import time

    from tests.workspace import environment

    lock = (own_workspace / "dvc.lock").read_text()
    manifest = (own_workspace / "models/sft/main/manifest.json").read_text()
    process = subprocess.Popen(
        [sys.executable, "-m", "stages.sft", "main"], cwd=own_workspace, env=environment(), stderr=subprocess.DEVNULL
    )
    deadline = time.monotonic() + 120
    while not list((own_workspace / "checkpoints/sft/main").glob("*/step-*")):
        assert process.poll() is None and time.monotonic() < deadline, "the stage ended before its first checkpoint"
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    done = stage(own_workspace, "sft", "main")
    assert "resumes from the checkpoint" in done.stdout
    assert (own_workspace / "models/sft/main/manifest.json").read_text() == manifest
    again = dvc(own_workspace, "repro")
    assert ran(again.stdout) == set(), again.stdout
    assert (own_workspace / "dvc.lock").read_text() == lock


def _quiet(done: Any) -> str:
    """The JSON among what a command printed."""
    text: str = done.stdout
    assert done.returncode == 0, text
    return text[text.index("{") :]
