"""What every policy answered to the same prompts, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from posttrain.report.policies import Policy, prompt_ids


def side_by_side(policies: Sequence[Policy], prompts: int) -> pl.DataFrame:
    """Return one row per prompt; per policy its first sample and likeliest completion with their scores, and the mean.

    The prompts are those whose text was kept; where none was, the scores stand alone.
    """
    if not policies:
        return pl.DataFrame(schema={"prompt_id": pl.String, "problem": pl.String, "prompt": pl.String})
    shown = policies[0].rollouts.filter(pl.col("prompt").is_not_null())["prompt_id"].unique(maintain_order=True)
    chosen = (shown.to_list() or prompt_ids(policies[0]))[:prompts]
    table = _asked(policies[0], chosen)
    for policy in policies:
        table = table.join(_answers(policy, chosen), on="prompt_id", how="left", maintain_order="left")
    return table


def for_page(table: pl.DataFrame, policies: Sequence[Policy], longest: int) -> list[dict[str, Any]]:
    """Return the same as plain data for the page, with long texts cut; rows without text are left out."""
    rows = []
    for row in table.filter(pl.col("prompt").is_not_null()).iter_rows(named=True):
        answers = [
            {
                "sampled": _cut(row[f"{policy.label}_sampled"], longest),
                "sampled_score": row[f"{policy.label}_sampled_score"],
                "greedy": _cut(row[f"{policy.label}_greedy"], longest),
                "greedy_score": row[f"{policy.label}_greedy_score"],
                "mean_score": row[f"{policy.label}_mean_score"],
            }
            for policy in policies
        ]
        asked = {"id": row["prompt_id"], "problem": row["problem"], "prompt": _cut(row["prompt"], longest)}
        rows.append({**asked, "answer": row["answer"], "by": answers})
    return rows


def lengths(policy: Policy) -> dict[str, float]:
    """Return how long the sampled completions are, in tokens: the mean and five quantiles."""
    rows = policy.rollouts.filter(~pl.col("greedy"))
    sampled = rows["length"] if "length" in rows.columns else rows["logps"].list.len()
    names = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
    return {name: float(sampled.quantile(q, "nearest") or 0) for name, q in names.items()} | {
        "mean": round(float(sampled.cast(pl.Int64()).sum()) / len(sampled), 3)
    }


def samples(policy: Policy) -> int:
    """Return how many completions were sampled for each prompt."""
    return int(policy.rollouts.filter(~pl.col("greedy"))["sample"].n_unique())


def _asked(policy: Policy, chosen: Sequence[str]) -> pl.DataFrame:
    turn = pl.element()
    spoken = pl.concat_str(turn.struct.field("role"), pl.lit(": "), turn.struct.field("content"))
    single = pl.col("prompt").list.first().struct.field("content")
    text = (
        pl.when(pl.col("prompt").list.len() == 1)
        .then(single)
        .otherwise(pl.col("prompt").list.eval(spoken).list.join("\n\n"))
    )
    rows = policy.rollouts.filter(pl.col("prompt_id").is_in(list(chosen)))
    return rows.unique("prompt_id", keep="first", maintain_order=True).select(
        "prompt_id", "problem", text.alias("prompt"), "answer"
    )


def _answers(policy: Policy, chosen: Sequence[str]) -> pl.DataFrame:
    rows = policy.rollouts.filter(pl.col("prompt_id").is_in(list(chosen)))
    score, name = pl.col("reward"), policy.label
    sampled, greedy = rows.filter(~pl.col("greedy")), rows.filter("greedy")
    mean = sampled.group_by("prompt_id", maintain_order=True).agg(score.mean().alias(f"{name}_mean_score"))
    parts = [
        part.filter(sample=0).select(
            "prompt_id", pl.col("completion").alias(f"{name}_{what}"), score.alias(f"{name}_{what}_score")
        )
        for what, part in (("sampled", sampled), ("greedy", greedy))
    ]
    return parts[0].join(parts[1], on="prompt_id", how="full", coalesce=True).join(mean, on="prompt_id", how="left")


def _cut(text: str | None, longest: int) -> str | None:
    return text if text is None or len(text) <= longest else f"{text[:longest]} … (cut, {len(text):,} characters)"
