"""The recipe `reasoning_gym`: by DVC with a stand-in for the model, and the tasks that its first lines ask for."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from ruamel.yaml import YAML

from tests.library.models.tiny import tiny_folder
from tests.pipeline.gym.test_reasoning_gym import installed, made
from tests.workspace import ROOT, dvc, make_workspace, run

RECIPE = ROOT / "recipes" / "reasoning_gym.yaml"


@pytest.mark.slow
def test_the_recipe_with_a_small_stand_in(tmp_path: Path) -> None:
    yaml = YAML(typ="safe")
    params = yaml.load(RECIPE.read_text(encoding="utf-8"))
    kept = {"s1", "s2", "g1", "base", "sft1", "sft2", "grpo1", "grpo1_products"}
    for group, section in (("sft", "runs"), ("online", "runs"), ("evaluate", "policies"), ("evaluate", "runs")):
        params[group][section] = {name: one for name, one in params[group][section].items() if name in kept}
    evaluate = params["evaluate"]
    for one in params["online"]["runs"].values():
        one["rollout"] = {"rounds": 1, "prompts": 4, "group_size": 4, "minibatches": 1, "sampling": {"max_tokens": 8}}
    for one in (evaluate["settings"], *evaluate["runs"].values()):
        one |= {"prompts": 8, "sampling": {"max_tokens": 8}}
    with (tmp_path / "params.yaml").open("w", encoding="utf-8") as file:
        yaml.dump(params, file)
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    shutil.copytree(tiny_folder(tmp_path / "tiny"), workspace / "my/smollm2")
    (workspace / "my/gym").mkdir(exist_ok=True)
    sums = [{"prompt": f"{number} + 2 =", "answer": str(number + 2)} for number in range(80)]
    products = [{"prompt": f"{number} * 2 =", "answer": str(number * 2)} for number in range(10)]
    for name, asked in (("prompts", sums), ("test-products", products)):
        lines = "".join(f"{json.dumps(row)}\n" for row in asked)
        (workspace / f"my/gym/{name}.jsonl").write_text(lines, encoding="utf-8")
    done = dvc(workspace, "repro")
    assert done.returncode == 0, done.stdout
    chat, prompts = (pl.read_parquet(workspace / f"data/gym/{kind}.parquet") for kind in ("chat", "prompts"))
    tested = prompts.filter(split="test")["problem"]
    assert 2 <= len(tested) < 40 and not {*chat["problem"]} & {*tested}, "nothing that is tested is shown"
    assert chat["messages"][0][-1]["content"].startswith("The answer is ")
    other = pl.read_parquet(workspace / "data/products/prompts.parquet")
    assert {*other["split"]} == {"test"}, "nothing trains on products"
    compared = run(workspace, "python", "-m", "posttrain", "compare").stdout
    assert re.search(r"^sft +2 ", compared, re.MULTILINE), "two seeds are one setting"


@pytest.mark.gym
@installed
def test_the_tasks_that_its_first_lines_ask_for_can_be_used(tmp_path: Path) -> None:
    asked = re.findall(r"^# +make reasoning-gym .*TASKS='(.*?)'", RECIPE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(asked) == 2
    for number, tasks in enumerate(asked):
        done = made(tmp_path / f"{number}.jsonl", json.loads(tasks), "--rows", "40")
        assert done.returncode == 0, done.stderr
    trained, other = ({*json.loads(tasks)} for tasks in asked)
    assert not trained & other
