"""Count the answers of a table that `correct` cannot read. A run without a reward would train with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from posttrain.errors import excerpt
from posttrain.rewards.reward import WeightedReward
from posttrain.rewards.scorable import Unread, why_not_scorable
from posttrain.rollout import Prompt

SHOWN: Final = 5


def unread_in(rows: pl.DataFrame, correct: WeightedReward) -> Unread:
    """Count the prompts whose answers cannot be read. Each answer is tried once. `correct`: the reward of this name."""
    examples, count = list[str](), 0
    same = rows.group_by("answer", "task", maintain_order=True).agg(pl.len().alias("rows"), pl.all().first())
    for row in same.iter_rows(named=True):
        if (why := why_unread(row, correct)) is not None:
            count += row["rows"]
            asked = row["prompt"][-1]["content"]
            examples.append(f"{excerpt(row['answer'], 60)} ({why}) of prompt {row['id']}: {excerpt(asked, 60)}")
    return Unread(count, rows.height, examples[:SHOWN])


def why_unread(row: Mapping[str, Any], correct: WeightedReward) -> str | None:
    """Return why `correct` cannot read a row's answer; None if it can."""
    prompt = Prompt("", row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
    return why_not_scorable("correct", correct, prompt)
