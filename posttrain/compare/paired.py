"""The paired test: two policies on the same prompts, with Holm's correction where several pairs are tested."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import polars as pl

from posttrain.compare.statistics import Finding, Floats, difference, findings

Score = Literal["sampled", "greedy"]
"""Sampled: the mean reward of the samples (pass@1 where it is 0 or 1); greedy: that of the likeliest completion."""


def prompt_scores(rollouts: pl.DataFrame, score: Score) -> pl.DataFrame:
    """Return the score of every prompt that has one: `prompt_id` and `reward`, in the order of the table."""
    chosen = rollouts.filter(pl.col("greedy") if score == "greedy" else ~pl.col("greedy"))
    rewards = chosen.drop_nulls("reward").group_by("prompt_id", maintain_order=True)
    return rewards.agg(pl.col("reward").mean().cast(pl.Float64))


def is_readable(rollouts: pl.DataFrame, score: Score) -> bool:
    """Return whether any completion has an answer that could be read; if none has, the scores mean nothing."""
    chosen = rollouts.filter(pl.col("greedy") if score == "greedy" else ~pl.col("greedy"))
    return bool((chosen["status"] == "ok").any())


def tested(scored: Sequence[Floats], pairs: Sequence[tuple[int, int]]) -> list[Finding]:
    """First minus second of each pair of settings, each [seeds, prompts]; shares cannot differ by more than 1."""
    unlimited = findings([difference(scored[left], scored[right]) for left, right in pairs])
    most = 1.0 if are_shares(scored) else np.inf
    return [replace(finding, low=max(finding.low, -most), high=min(finding.high, most)) for finding in unlimited]


def are_shares(scored: Sequence[Floats]) -> bool:
    """Return whether all scores lie between 0 and 1."""
    return all(scores_SP.min() >= 0.0 and scores_SP.max() <= 1.0 for scores_SP in scored)


def against(reference: pl.DataFrame, others: Mapping[str, pl.DataFrame]) -> dict[str, Finding]:
    """Return each policy minus the reference, by its rollouts; not of policies without a readable answer."""
    readable = {name: rollouts for name, rollouts in others.items() if is_readable(rollouts, "sampled")}
    if not readable or not is_readable(reference, "sampled"):
        return {}
    base = prompt_scores(reference, "sampled")
    tables = {name: prompt_scores(rollouts, "sampled") for name, rollouts in readable.items()}
    same = {name: table for name, table in tables.items() if table["prompt_id"].equals(base["prompt_id"])}
    scored = [table["reward"].to_numpy()[None, :] for table in (base, *same.values())]
    found = tested(scored, [(nth, 0) for nth in range(1, len(scored))])
    return dict(zip(same, found, strict=True))
