"""Answers that `correct` cannot read, counted where tables are made: a run without a reward would learn by it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from posttrain.errors import DataError, excerpt
from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rewards.reward import WeightedReward
from posttrain.rewards.scorable import why_not_scorable
from posttrain.rollout import Prompt
from posttrain.tables.columns import Kind, canonical
from posttrain.tables.store import read_note

MOST: Final = 0.05
"""The largest share of training prompts with answers that `correct` cannot read in a run that sets no reward."""
SHOWN: Final = 5
_TERM: Final = WeightedReward(type="correct", reward=correct, options=CorrectOptions())


class Unread(NamedTuple):
    """How many answers of training prompts cannot be read."""

    rows: int
    of: int
    examples: Sequence[str]
    """Where some of them are, with the reasons."""


def unread_in(frame: pl.DataFrame) -> Unread:
    """Count the training prompts of a table whose answers cannot be read; each answer is tried once."""
    train, examples, rows = frame.filter(split="train"), list[str](), 0
    same = train.group_by("answer", "task", maintain_order=True).agg(pl.len().alias("rows"), pl.all().first())
    for row in same.iter_rows(named=True):
        if (why := why_unread(row)) is not None:
            rows += row["rows"]
            asked = row["prompt"][-1]["content"]
            examples.append(f"{excerpt(row['answer'], 60)} ({why}) of prompt {row['id']}: {excerpt(asked, 60)}")
    return Unread(rows, train.height, examples[:SHOWN])


def why_unread(row: Mapping[str, Any]) -> str | None:
    """Return why `correct` cannot read the answer of a row; None: it can."""
    prompt = Prompt("", row["prompt"], (), row["answer"], json.loads(row["info"]), row["task"], row["problem"])
    return why_not_scorable("correct", _TERM, prompt)


def answer_notes(tables: Mapping[Kind, pl.DataFrame]) -> dict[Kind, str]:
    """Return what is stored with tables of prompts that have such answers."""
    found = {kind: unread_in(frame) for kind, frame in tables.items() if kind == "prompts"}
    return {kind: canonical({"unread": one._asdict()}) for kind, one in found.items() if one.rows}


def stored_unread(table: Path) -> Unread | None:
    """Return what was counted when a table was made; None: all its answers can be read."""
    note = read_note(table).get("unread")
    return None if note is None else Unread(**note)


def refuse_unread(found: Unread | None, section: str, counted: str) -> None:
    """Refuse a run without a reward where `correct` cannot read too many answers; `counted`: of which rows."""
    if found is None or found.rows <= MOST * found.of:
        return
    what = f"it sets no reward, so it learns by `correct`, which cannot read {found.rows:,} of {found.of:,} answers "
    what += f"{counted}:"
    fix = (
        "Name what it learns by, e.g. reward: {correct: {answer: math}} (or exact, choice, regex; docs/rewards.md); "
        f"or write answers that it can read. At most {MOST:.0%} may be left out"
    )
    raise DataError(what="\n  ".join([what, *found.examples]), where=f"{section}.reward", fix=fix)
