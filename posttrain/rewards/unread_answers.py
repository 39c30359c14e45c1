"""Count the answers that `correct` cannot read when tables are made. A run without a reward would train with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import polars as pl

from posttrain.data.columns import Kind, canonical
from posttrain.errors import excerpt
from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rewards.reward import WeightedReward
from posttrain.rewards.scorable import Unread, why_not_scorable
from posttrain.rollout import Prompt

SHOWN: Final = 5
_TERM: Final = WeightedReward(type="correct", reward=correct, options=CorrectOptions())


def unread_in(frame: pl.DataFrame) -> Unread:
    """Count a table's training prompts whose answers cannot be read. Each answer is tried once."""
    train, examples, rows = frame.filter(split="train"), list[str](), 0
    same = train.group_by("answer", "task", maintain_order=True).agg(pl.len().alias("rows"), pl.all().first())
    for row in same.iter_rows(named=True):
        if (why := why_unread(row)) is not None:
            rows += row["rows"]
            asked = row["prompt"][-1]["content"]
            examples.append(f"{excerpt(row['answer'], 60)} ({why}) of prompt {row['id']}: {excerpt(asked, 60)}")
    return Unread(rows, train.height, examples[:SHOWN])


def why_unread(row: Mapping[str, Any]) -> str | None:
    """Return why `correct` cannot read a row's answer; None if it can."""
    prompt = Prompt("", row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
    return why_not_scorable("correct", _TERM, prompt)


def answer_notes(tables: Mapping[Kind, pl.DataFrame]) -> dict[Kind, str]:
    """Return the notes to store with prompt tables that have such answers."""
    found = {kind: unread_in(frame) for kind, frame in tables.items() if kind == "prompts"}
    return {kind: canonical({"unread": one._asdict()}) for kind, one in found.items() if one.rows}
