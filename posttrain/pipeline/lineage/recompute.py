"""Recompute the metrics of an evaluation from its rows, the counts of tables, and the ends of curves."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import polars as pl

from posttrain.evaluate.intervals import part_figures, prompt_figures
from posttrain.rollout import FAILED, Prompt, Rollout, TokenRow
from posttrain.tasks.task import load_task

TAIL = 10
"""The number of steps at the end of a curve that an online run's metrics average over."""
AVERAGED = ("reward", "length", "entropy", "kl_k3", "accuracy", "teacher_kl")
"""Those metrics (`summary` in online/config.py; importing it would import torch, which takes longer than the
answer)."""


def evaluated(frame: pl.DataFrame, seed: int) -> dict[str, float]:
    """Return the metrics in results/LABEL/metrics.json from results/LABEL/rollouts.parquet. KL needs the weights."""
    rows = frame.filter(~pl.col("greedy"))
    known, greedy = (part.filter(pl.col("reward").is_not_null()) for part in (rows, frame.filter(pl.col("greedy"))))
    groups = [part["reward"].to_list() for part in known.partition_by("prompt_id", maintain_order=True)]
    samples = rows.height // max(rows["prompt_id"].n_unique(), 1)
    metrics = prompt_figures(groups, samples, seed)
    if greedy.height:
        metrics["greedy"] = _mean(greedy["reward"])
    metrics["failed"] = 1 - known.height / rows.height
    metrics["parsed"] = _mean((known["status"] == "ok").cast(pl.Float64))
    metrics["truncated"] = _mean(known["truncated"].cast(pl.Float64))
    metrics["length"] = _mean(lengths(known).cast(pl.Float64))
    return metrics | _parts(known, seed) | _of_tasks(known)


def lengths(frame: pl.DataFrame) -> pl.Series:
    """Return the number of sampled tokens of each row."""
    return frame["length"] if "length" in frame.columns else frame["logps"].list.len()


def _parts(known: pl.DataFrame, seed: int) -> dict[str, float]:
    """Return each part of the reward and each metric, over the rows with a score."""
    scores = known.select("prompt_id", pl.col("scores").alias("one")).explode("one").unnest("one").drop_nulls("name")
    value = pl.when(~pl.col("status").is_in(sorted(FAILED))).then("value")
    metrics: dict[str, float] = {}
    for name, part in scores.group_by("name", maintain_order=True):
        values = part.group_by("prompt_id", maintain_order=True).agg(value)["value"].to_list()
        metrics |= part_figures(f"reward_{name[0]}", values, seed)
    return metrics


def _of_tasks(known: pl.DataFrame) -> dict[str, float]:
    """Return the score of each task, or the metrics of the only task."""
    tasks = known["task"].unique().to_list()
    if len(tasks) > 1:
        means = known.group_by("task").agg(pl.col("reward").mean())
        return {f"score_{task or 'other'}": value for task, value in means.iter_rows()}
    if not tasks or known["completion"].null_count():
        return {}
    rollouts = [_rollout(row) for row in known.iter_rows(named=True)]
    try:
        metrics = load_task(tasks[0]).metrics(rollouts, known["reward"].to_list())
        return {key: float(value) for key, value in metrics.items()}
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError, AssertionError):
        return {}  # a user's task may read what these rows do not have, as `info` of the prompt


def _rollout(row: Mapping[str, Any]) -> Rollout:
    """Return a row as a rollout for its task's metrics."""
    prompt = Prompt(row["prompt_id"], row["prompt"], (), row["answer"], {}, row["task"], row["problem"])
    text = row["completion"] if all(row["mask"]) else row["completion"].rpartition("\n\nassistant: ")[2]
    return Rollout(
        prompt,
        row["sample"],
        TokenRow((), row["completion_ids"], row["mask"]),
        row["logps"],
        text,
        "length" if row["truncated"] else "stop",
        turn_rewards=row.get("turn_rewards") or (),
        info=json.loads(row.get("info") or "{}"),
    )


def tail(columns: Mapping[str, Any], key: str) -> float | None:
    """Return the mean of a curve's last steps; None if the metric is not such a mean."""
    values = [value for value in columns.get(key, ())[-TAIL:] if value is not None and key in AVERAGED]
    return math.fsum(values) / len(values) if values else None


def _mean(values: pl.Series) -> float:
    return float(values.mean()) if len(values) else math.nan  # type: ignore[arg-type]
