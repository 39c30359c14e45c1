"""The paired test: compare policies on the same prompts, with Holm's correction for several pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl

from posttrain.errors import DataError
from posttrain.pipeline.compare.statistics import Difference, Finding, Floats, difference, findings
from posttrain.rollout import FAILED

Score = Literal["sampled", "greedy"]
"""sampled: the mean reward of the samples (pass@1 if it is 0 or 1). greedy: the greedy completion's reward."""


def prompt_scores(rollouts: pl.DataFrame, score: Score) -> pl.DataFrame:
    """Return the score of every prompt as `prompt_id` and `reward`; null if no completion could be scored."""
    chosen = rollouts.filter(pl.col("greedy") if score == "greedy" else ~pl.col("greedy"))
    return chosen.group_by("prompt_id", maintain_order=True).agg(pl.col("reward").mean().cast(pl.Float64))


def prompt_parts(rollouts: pl.DataFrame, score: Score) -> tuple[dict[str, Floats], dict[str, int]]:
    """Return the mean of each reward part and metric on every prompt, and the number of completions without it.

    Completions without a score are excluded. NaN: no completion of the prompt has the value.
    """
    if "scores" not in rollouts.columns:
        return {}, {}
    chosen = rollouts.filter(pl.col("greedy") if score == "greedy" else ~pl.col("greedy"))
    order = chosen.select(pl.col("prompt_id").unique(maintain_order=True))
    scored = chosen.filter(pl.col("reward").is_not_null()).select("prompt_id", one="scores")
    rows = scored.explode("one").unnest("one").drop_nulls("name")
    value = pl.when(~pl.col("status").is_in(sorted(FAILED))).then("value")
    means = rows.group_by("name", "prompt_id", maintain_order=True).agg(value.mean(), lost=value.null_count())
    means_by_name, lost = {}, {}
    for (name,), rows_of_name in means.group_by("name", maintain_order=True):
        joined = order.join(rows_of_name, on="prompt_id", how="left", maintain_order="left")
        means_by_name[str(name)] = joined["value"].fill_null(float("nan")).to_numpy()
        lost[str(name)] = int(rows_of_name["lost"].sum())
    return means_by_name, lost


def is_readable(rollouts: pl.DataFrame, score: Score) -> bool:
    """Tell whether any completion has a readable answer. Otherwise the scores are meaningless."""
    chosen = rollouts.filter(pl.col("greedy") if score == "greedy" else ~pl.col("greedy"))
    return bool((chosen["status"] == "ok").any())


def tested(scored: Sequence[Floats], pairs: Sequence[tuple[int, int]]) -> list[Finding]:
    """Return first minus second for each pair of settings, as [seeds, prompts] each. Shares differ by at most 1.

    A pair is tested on the prompts with a score in all trainings of both.
    """
    unlimited = findings([_difference(scored[left], scored[right]) for left, right in pairs])
    most = 1.0 if are_shares(scored) else np.inf
    return [replace(finding, low=max(finding.low, -most), high=min(finding.high, most)) for finding in unlimited]


def are_shares(scored: Sequence[Floats]) -> bool:
    """Tell whether all scores lie between 0 and 1."""
    return all(np.nanmin(scores_SP) >= 0.0 and np.nanmax(scores_SP) <= 1.0 for scores_SP in scored)


def with_scores(*sides: Floats) -> list[Floats]:
    """Return each side's scores [seeds, prompts] on the prompts with a score in all trainings of all sides."""
    known_P = np.logical_and.reduce([np.isfinite(side_SP).all(axis=0) for side_SP in sides])
    if not known_P.any():
        what, fix = "no prompt has a score of all that is compared", "Evaluate it again: dvc repro"
        raise DataError(what=what, where="results", fix=fix)
    return [np.compress(known_P, side_SP, axis=1) for side_SP in sides]


def _difference(left_SP: Floats, right_SP: Floats) -> Difference:
    left_SP, right_SP = with_scores(left_SP, right_SP)
    return difference(left_SP, right_SP)


def against(reference: pl.DataFrame, others: Mapping[str, pl.DataFrame]) -> dict[str, Finding]:
    """Return each policy minus the reference, from rollouts. Policies without readable answers are left out."""
    readable = {name: rollouts for name, rollouts in others.items() if is_readable(rollouts, "sampled")}
    if not readable or not is_readable(reference, "sampled"):
        return {}
    base = prompt_scores(reference, "sampled")
    tables = {name: prompt_scores(rollouts, "sampled") for name, rollouts in readable.items()}
    same = {name: table for name, table in tables.items() if table["prompt_id"].equals(base["prompt_id"])}
    scored = [table["reward"].to_numpy()[None, :] for table in (base, *same.values())]
    results = tested(scored, [(place, 0) for place in range(1, len(scored))])
    return dict(zip(same, results, strict=True))
