"""The section GSM8K of docs/trl.md, word for word: the Hub's folder and a tiny model through `dvc repro`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from posttrain.pipeline.tables.store import read_table
from tests.pipeline.tables.gsm8k import write_gsm8k
from tests.workspace import ROOT, make_workspace, run

PAGE = (ROOT / "docs/trl.md").read_text(encoding="utf-8").split("\n## GSM8K\n")[1].split("\n## ")[0]
((PARAMS,), (COMMANDS,)) = (re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL) for kind in ("yaml", "sh"))


def test_the_page_shows_the_recipe() -> None:
    yaml = YAML(typ="safe")
    assert yaml.load(PARAMS) == yaml.load((ROOT / "recipes/gsm8k.yaml").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_the_page_ends_with_results_on_the_test_split(tmp_path: Path, smoke_workspace: Path) -> None:
    (tmp_path / "params.yaml").write_text(PARAMS, encoding="utf-8")
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    write_gsm8k(workspace / "my/gsm8k")
    shutil.copytree(smoke_workspace / "models/sft/main", workspace / "my/model")  # it has learned to write `#### N`
    for command in COMMANDS.strip().splitlines():
        done = run(workspace, "bash", "-c", command)
        assert done.returncode == 0, f"{command}\n{done.stdout}"
    rows = json.loads(run(workspace, "python", "-m", "posttrain", "show", "results", "--json").stdout)
    assert [row["policy"] for row in rows] == ["start", "sft", "grpo"]
    prompts = read_table(workspace / "data/gsm8k/prompts.parquet", "prompts").filter(split="test")
    rollouts = read_table(workspace / "results/grpo/rollouts.parquet", "rollouts")
    assert prompts.height == 20 and set(rollouts["prompt_id"]) == set(prompts["id"])
