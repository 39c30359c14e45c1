"""Find completions that are equal on both sides of a comparison but have different scores: a grader changed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import polars as pl

from posttrain.errors import excerpt
from posttrain.measure.text_table import text_table
from posttrain.rollout import SAME

if TYPE_CHECKING:
    from posttrain.pipeline.compare.evaluated import EvaluatedPolicy

SHOWN = 10
"""The rows that are listed in the terminal."""
_ROW = {"key": pl.String(), "id": pl.String(), "problem": pl.String(), "ends": pl.String(), "reward": pl.Float64()}
ENDS = 60
"""The characters of a completion's end that a row keeps: its answer is there."""


@dataclass(frozen=True)
class MovedRow:
    """A completion with two different scores."""

    id: str
    prompt: str
    ends_in: str
    """The end of the completion; empty if its text is not stored."""
    left: float | None
    """Its score on the left; None: a reward could not score it."""
    right: float | None


@dataclass(frozen=True)
class Moved:
    """The number of completions that two evaluations share, and the rows whose score changed."""

    left: str
    right: str
    shared: int
    rows: list[MovedRow]


def scored_rows(rollouts: pl.DataFrame) -> pl.DataFrame:
    """Return each row's key, id, prompt, end of completion, and score; empty for tables without completions.

    The key is the same for the same completion of the same prompt, whatever the policy is called.
    """
    if "id" not in rollouts.columns or "completion_ids" not in rollouts.columns:
        return pl.DataFrame(schema=_ROW)
    key = pl.struct("prompt_id", "sample", "greedy", "completion_ids").struct.json_encode()
    asked = pl.col("prompt").list.last().struct.field("content").fill_null(pl.col("problem"))
    ends = pl.col("completion").str.slice(-ENDS).fill_null("").alias("ends")
    stored = pl.when(pl.col("completion_ids").is_not_null()).then(key).otherwise("id").alias("key")
    return rollouts.select(stored, "id", asked.alias("problem"), ends, pl.col("reward").cast(pl.Float64))


def digest_of(rows: pl.DataFrame) -> str:
    """Return a digest that identifies these completions; empty without rows."""
    return hashlib.sha256("".join(sorted(rows["key"])).encode()).hexdigest() if rows.height else ""


def moved(policies: Sequence[EvaluatedPolicy]) -> list[Moved]:
    """Return the pairs whose shared completions have different scores. This is unknown for a metric."""
    pairs = (_moved(left, right) for left, right in combinations(policies, 2) if not (left.metric or right.metric))
    return [pair for pair in pairs if pair.rows]


def _moved(left: EvaluatedPolicy, right: EvaluatedPolicy) -> Moved:
    both = left.rows.join(right.rows.select("key", now="reward"), on="key", maintain_order="left")
    one_lacks = pl.col("reward").is_null() != pl.col("now").is_null()
    other = one_lacks | ((pl.col("reward") - pl.col("now")).abs() > SAME).fill_null(value=False)
    rows = both.filter(other).select("id", "problem", "ends", "reward", "now").rows()
    return Moved(left.name, right.name, both.height, [MovedRow(*row) for row in rows])


def moved_lines(pairs: Sequence[Moved]) -> list[str]:
    """Return each pair as text: the number of changed scores and the first change."""
    return [_lines(pair) for pair in pairs]


def _lines(pair: Moved) -> str:
    count = (
        f"{len(pair.rows):,} of {pair.shared:,} completions that {pair.left} and {pair.right} share have another score"
    )
    rows = [["row", pair.left, pair.right, "prompt", "ends in"]]
    for row in pair.rows[:SHOWN]:
        rows.append([row.id, _score(row.left), _score(row.right), excerpt(row.prompt, 40), excerpt(row.ends_in, 40)])
    hidden = len(pair.rows) - SHOWN
    more = [f"({hidden:,} more: --json lists all, `posttrain why ROW` explains one)"] if hidden > 0 else []
    return "\n".join([count, *text_table(rows, left=(0, 3, 4)), *more])


def _score(value: float | None) -> str:
    return "no score" if value is None else f"{value:.3g}"
