"""A table that others wrote, with wrong answers: chosen by a score, it teaches more than the whole of it does."""

from __future__ import annotations

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.params.yaml_files import read_yaml
from posttrain.pipeline.runs.scored_filter import answered
from posttrain.pipeline.tables.store import read_table
from posttrain.rewards.learned import RewardModel
from tests.library.models.imported_models import scorer_folder
from tests.pipeline.test_adapters import edit
from tests.pipeline.test_flow import states
from tests.workspace import dvc, make_workspace, run

RULE = '''
import re

from posttrain.rewards.reward import rule


@rule()
def consistent(rollout, options):
    """1 where each step is right and the answer is the last step's, 0.5 without steps, else 0."""
    steps = re.findall(r"(\\d+)([-+*])(\\d+)=(\\d+)", rollout.text)
    value = {"+": int.__add__, "-": int.__sub__, "*": int.__mul__}
    right = all(value[sign](int(a), int(b)) == int(c) for a, sign, b, c in steps)
    return 0.5 if not steps else float(right and re.findall(r"[0-9]+$", rollout.text) == [steps[-1][-1]])
'''


def with_wrong_answers(chat: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows, and after each two of the same prompt whose last number is another one."""
    draw, rows = random.Random(3), []
    for row in chat.sort("id").iter_rows(named=True):
        said = row["messages"][-1]["content"]
        number = re.findall(r"\d+$", said)[0]
        wrong = (
            [f"{said.removesuffix(number)}{int(number) + draw.randrange(1, 9)}" for _ in range(2)]
            if "=" in said
            else []
        )
        for answer in (said, *wrong):
            turns = [*row["messages"][:-1], {"role": "assistant", "content": answer}]
            rows.append({"split": row["split"], "problem": row["problem"], "messages": turns})
    return rows


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_rows_chosen_by_a_score_teach_more_than_all_rows(own_workspace: Path) -> None:
    (own_workspace / "custom/my_rules.py").write_text(RULE, encoding="utf-8")
    rows = with_wrong_answers(read_table(own_workspace / "data/two_step/chat.parquet", "chat"))
    (own_workspace / "mine").mkdir()
    (own_workspace / "mine/chat.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")

    def change(params: Any) -> None:
        params["data"]["files"] = {"theirs": {"path": "mine", "chat": "chat.jsonl"}}
        good = {
            "data": "theirs/chat",
            "against": "none",
            "reward_model": "none",
            "reward": {"my_rules:consistent": 1.0},
            "min_score": 0.5,
        }
        params["data"]["filters"] = {"good": {**good, "best": 1}}
        for name in ("theirs", "good"):
            params["sft"]["runs"][name] = {**params["sft"]["runs"]["main"], "data": f"{name}/chat"}
            params["evaluate"]["policies"][name] = f"sft/{name}"

    edit(own_workspace, change)
    done = dvc(own_workspace, "repro", "evaluate@theirs", "evaluate@good")
    assert done.returncode == 0, done.stdout
    kept = read_table(own_workspace / "data/good/chat.parquet", "chat")
    assert kept.height < 0.6 * len(rows)
    assert kept.group_by("problem").len()["len"].max() == 1
    score = {
        name: json.loads((own_workspace / f"results/{name}/metrics.json").read_text())["score"]
        for name in ("theirs", "good")
    }
    assert score["good"] > score["theirs"] + 0.05, score


JUDGED = """
data:
  files:
    mine: {path: my/data, chat: answers.jsonl}
  filters:
    good: {data: mine/chat, against: none, reward_model: base/judge, reward: {model: 1.0}, best: 1}
    short: {data: mine/chat, against: none, reward_model: none, max_chars: 60}
base:
  folders:
    judge: {path: my/judge}
"""


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A workspace with three answers to each prompt, and a reward model of others."""
    folder = tmp_path_factory.mktemp("judged")
    (folder / "params.yaml").write_text(JUDGED, encoding="utf-8")
    made = make_workspace(folder / "clone", folder / "params.yaml")
    draw, rows = random.Random(5), []
    for n in range(40):
        for answer in draw.sample(range(100), 3):
            turns = [{"role": "user", "content": f"{n}+{n}?"}, {"role": "assistant", "content": f"It is {answer}"}]
            rows.append({"messages": turns})
    (made / "my/data").mkdir(parents=True)
    (made / "my/data/answers.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    scorer_folder(made / "my/judge")
    return made


def running(output: str) -> list[str]:
    return [line.split("'")[1] for line in output.splitlines() if line.startswith("Running stage")]


@pytest.mark.slow
def test_a_reward_model_that_a_filter_names_is_its_dependency(judged: Path) -> None:
    checked = run(judged, sys.executable, "-m", "posttrain", "check")
    assert checked.returncode == 0, checked.stdout
    done = dvc(judged, "repro", "data_filters@good", "data_filters@short")
    assert done.returncode == 0, done.stdout
    assert {"base_folders@judge", "data_filters@good", "data_filters@short"} <= set(running(done.stdout))
    needs = {name: stage["deps"] for name, stage in read_yaml(judged / "dvc.lock")["stages"].items()}
    read = {name: {dep["path"] for dep in needs[f"data_filters@{name}"]} for name in ("good", "short")}
    assert "models/base/judge" in read["good"] and "models/base/judge" not in read["short"]

    given = read_table(judged / "data/mine/chat.parquet", "chat")
    score = RewardModel(judged / "models/base/judge", Runtime(DeviceParams(device="cpu")), None)
    rollouts = [answered(row, "messages") for row in given.iter_rows(named=True)]
    scored = given.with_columns(found=pl.Series(score(rollouts)))
    best = scored.filter(pl.col("found") == pl.col("found").max().over("split", "problem"))
    kept = read_table(judged / "data/good/chat.parquet", "chat")
    assert set(kept["id"]) == set(best["id"]) and kept.height == given["problem"].n_unique() < 0.4 * given.height

    config = judged / "my/judge/config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "reward_shift": 1.0}), encoding="utf-8")
    flow = run(judged, sys.executable, "-m", "flows.pipeline", "data_filters@good", "data_filters@short")
    assert flow.returncode == 0, flow.stdout
    found = states(flow.stdout)
    assert (found["data_filters@good"], found["data_filters@short"]) == ("Completed", "Cached"), flow.stdout
    assert read_table(judged / "data/good/chat.parquet", "chat")["id"].to_list() == kept["id"].to_list()
    edit(judged, lambda params: params["data"]["filters"]["good"].update(reward_model="none"))
    refused = run(judged, sys.executable, "-m", "posttrain", "check")
    assert refused.returncode == 1 and "Set one, e.g. reward_model: reward/main" in refused.stdout
