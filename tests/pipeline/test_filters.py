"""A table that others wrote, with wrong answers: chosen by a score, it teaches more than the whole of it does."""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.tables.store import read_table
from tests.pipeline.test_adapters import edit
from tests.workspace import dvc

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
        good = {"data": "theirs/chat", "against": "none", "reward": {"my_rules:consistent": 1.0}, "min_score": 0.5}
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
