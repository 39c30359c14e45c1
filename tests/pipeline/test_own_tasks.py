"""The page about episodes, word for word: a task of the user's own with several turns, through a real `dvc repro`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest

from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT, Finished, make_workspace, run


def block(language: str) -> str:
    _, text = (ROOT / "docs/tasks.md").read_text(encoding="utf-8").split("\n## A task of your own\n")
    found: str = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)[0]
    return found


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Finished]:
    """A clone in which the page was followed, with a model whose every sixth token ends a turn."""
    folder = tmp_path_factory.mktemp("tasks")
    (folder / "params.yaml").write_text(block("yaml"), encoding="utf-8")
    workspace = make_workspace(folder / "clone", folder / "params.yaml")
    (workspace / "custom/my_guess.py").write_text(block("python"), encoding="utf-8")
    model = shutil.move(tiny_folder(folder), workspace / "my" / "model")
    ends = {"eos_token_id": list(range(0, 270, 6))}
    (Path(model) / "generation_config.json").write_text(json.dumps(ends), encoding="utf-8")
    done = Finished([], 0, "")
    for command in block("sh").splitlines():
        done = run(workspace, "bash", "-c", command)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
    return workspace, done


@pytest.mark.slow
def test_the_commands_of_the_docs_page_end_with_results(walked: tuple[Path, Finished]) -> None:
    workspace, done = walked
    head, *_ = done.stdout.splitlines()
    assert "score [95 % interval]" in head and "completions" in head
    prompts = pl.read_parquet(workspace / "data/guess/prompts.parquet")
    assert prompts["task"].unique().to_list() == ["my_guess:guess"] and prompts.height == 60
    metrics = json.loads((workspace / "results/grpo/metrics.json").read_text())
    assert 1 < metrics["completions"] <= 4 and 0 < metrics["score"] < 1 and metrics["kl_k3"] > 0
    assert json.loads((workspace / "results/start/metrics.json").read_text())["kl_k1"] == 0


@pytest.mark.slow
def test_rollouts_of_several_turns_are_kept_with_their_mask(walked: tuple[Path, Finished]) -> None:
    rollouts = pl.read_parquet(walked[0] / "results/grpo/rollouts.parquet")
    several = rollouts.filter(~pl.col("mask").list.all())
    assert 0 < several.height < rollouts.height
    shown = several["completion"].to_list()
    assert all(re.match(r"(?s)assistant: .*\n\nuser: (Higher|Lower|Write a number)\.\n\nassistant: ", x) for x in shown)
    marked = rollouts.select(pl.col("mask").list.sum() == pl.col("logps").list.len())
    assert marked.to_series().all()


@pytest.mark.slow
def test_a_change_of_the_task_runs_what_uses_it(walked: tuple[Path, Finished]) -> None:
    workspace, _ = walked
    task = workspace / "custom/my_guess.py"
    task.write_text(task.read_text().replace("Guess my number.", "Guess!"), encoding="utf-8")
    done = run(workspace, "dvc", "repro", "data_tasks")
    assert done.returncode == 0, done.stdout
    prompts = pl.read_parquet(workspace / "data/guess/prompts.parquet")
    assert prompts["prompt"][0][0]["content"] == "Guess! It is from 1 to 999."
