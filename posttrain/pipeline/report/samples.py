"""The answers of all policies to the same prompts, side by side."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from posttrain.pipeline.report.policies import Policy, prompt_ids
from posttrain.pipeline.report.wrong import RIGHT, Asked, kind
from posttrain.rollout import stored_value

DIGITS = 4
SHORT = 200
"""The most characters of a prompt whose completions are not on the page."""
SAMPLE_BYTES = 150
"""Bytes of a sample on the page besides its text."""
ROW = (
    "id", "prompt_id", "problem", "task", "prompt", "answer", "completion", "reward", "status", "scores", "truncated",
    "greedy", "sample",
)  # fmt: skip


def side_by_side(policies: Sequence[Policy]) -> pl.DataFrame:
    """Return one row per prompt. Each policy has its first sample, greedy completion, their scores, and the mean score.

    The prompts are those with stored text. If there are none, only the scores are shown.
    """
    if not policies:
        return pl.DataFrame(schema={"prompt_id": pl.String, "problem": pl.String, "prompt": pl.String})
    shown = policies[0].rollouts.filter(pl.col("prompt").is_not_null())["prompt_id"].unique(maintain_order=True)
    chosen = shown.to_list() or prompt_ids(policies[0])
    table = _asked(policies[0], chosen)
    for policy in policies:
        table = table.join(_answers(policy, chosen), on="prompt_id", how="left", maintain_order="left")
    return table


@dataclass(frozen=True)
class Shown:
    """The page's prompts with samples as plain data, and their number out of all prompts."""

    prompts: list[dict[str, Any]]
    prompts_in_all: int
    samples: int
    """The first samples of each prompt. The shares are over all its samples."""
    samples_in_all: int
    with_texts: int
    """The first prompts, whose completions are on the page. Of the other prompts it has the counts and mean scores."""
    reasons: list[str]
    """The requirements that samples missed. A sample stores an index into this list."""


def for_page(chosen: Sequence[str], policies: Sequence[Policy], longest: int, budget: int, asked: Asked) -> Shown:
    """Return each policy's answers to these prompts, with long texts cut.

    If the result exceeds `budget` bytes, it has fewer samples per prompt; if one is still too much, the last prompts
    have no completions and short texts. Prompts without stored text are left out.
    """
    if not policies:
        return Shown([], 0, 0, 0, 0, [])
    in_all, most = len(prompt_ids(policies[0])), samples(policies[0])
    asked_for = _asked(policies[0], chosen).filter(pl.col("prompt").is_not_null())
    by_policy = [_by_prompt(policy, asked_for["prompt_id"].to_list()) for policy in policies]
    rows = [
        {
            "id": row["prompt_id"],
            "prompt": _cut(row["prompt"], longest),
            "answer": row["answer"],
            "by": [answers.get(row["prompt_id"]) for answers in by_policy],
        }
        for row in asked_for.iter_rows(named=True)
    ]
    count, samples_in_all = len(rows), most
    sizes = [_sizes(row, longest, most) for row in rows]
    while most > 1 and sum(sum(size[: most + 1]) for size in sizes) > budget:
        most -= 1
    while count > 1 and sum(sum(size[: most + 1]) for size in sizes[:count]) > budget:
        count -= 1
    reasons: dict[str, int] = {"": 0}
    for place, row in enumerate(rows):
        has_texts = place < count
        row["by"] = [
            rollouts and _answered(rollouts, most if has_texts else None, longest, asked, reasons)
            for rollouts in row["by"]
        ]
        if not has_texts:
            row["prompt"] = _cut(row["prompt"], SHORT)
    return Shown(rows, in_all, most, samples_in_all, count, list(reasons))


def _by_prompt(policy: Policy, chosen: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Return the rollouts of each prompt, sampled ones first."""
    outcomes = "pass_at_1" in policy.metrics
    tokens = pl.col("length") if "length" in policy.rollouts.columns else pl.col("logps").list.len()
    rows = policy.rollouts.filter(pl.col("prompt_id").is_in(list(chosen)))
    rows = rows.with_columns(kind(outcomes=outcomes), tokens=tokens).sort("greedy", "sample", maintain_order=True)
    wanted = (*ROW, *("tokens", "kind"))
    rollouts: dict[str, list[dict[str, Any]]] = {}
    for row in rows.select(wanted).iter_rows(named=True):
        rollouts.setdefault(row["prompt_id"], []).append(row)
    return rollouts


def _sizes(row: Mapping[str, Any], longest: int, most: int) -> list[int]:
    """Return the approximate bytes of a prompt with its greedy completions, and of each of its samples."""
    sizes = [len(json.dumps([row["prompt"], row["answer"]])), *[0] * most]
    for sample in (sample for rollouts in row["by"] for sample in rollouts or ()):
        place = 0 if sample["greedy"] else min(sample["sample"], most - 1) + 1
        sizes[place] += len(json.dumps(_cut(sample["completion"], longest))) + SAMPLE_BYTES
    return sizes


def _answered(
    rollouts: Sequence[Mapping[str, Any]], most: int | None, longest: int, asked: Asked, reasons: dict[str, int]
) -> dict[str, Any]:
    """Return the first samples of one prompt, its greedy completion, and the metrics of all its samples.

    If `most` is None, no completions.
    """
    sampled = [row for row in rollouts if not row["greedy"]]
    known = [row["reward"] for row in sampled if row["reward"] is not None]
    counts: dict[str, int] = {}
    for row in sampled:
        for name in (row["kind"], *(["cut"] if row["truncated"] else [])):
            counts[name] = counts.get(name, 0) + 1
    shown = [*sampled[:most], *(row for row in rollouts if row["greedy"])] if most is not None else []
    return {
        "kinds": counts,
        "mean": round(sum(known) / len(known), DIGITS) if known else None,
        "samples": [
            {
                "id": row["id"],
                "text": _cut(row["completion"], longest),
                "kind": row["kind"],
                "score": row["reward"],
                "parts": [[part["name"], stored_value(part), part["status"]] for part in row["scores"]],
                "tokens": row["tokens"],
                **({"reason": reasons.setdefault(asked.reason(row), len(reasons))} if row["kind"] != RIGHT else {}),
                **({"cut": 1} if row["truncated"] else {}),
                **({"greedy": 1} if row["greedy"] else {}),
            }
            for row in shown
        ],
    }


def lengths(policy: Policy) -> dict[str, float]:
    """Return the lengths of sampled completions in tokens: the mean and five quantiles."""
    rows = policy.rollouts.filter(~pl.col("greedy"))
    sampled = rows["length"] if "length" in rows.columns else rows["logps"].list.len()
    names = {"p5": 0.05, "p25": 0.25, "p50": 0.5, "p75": 0.75, "p95": 0.95}
    return {name: float(sampled.quantile(q, "nearest") or 0) for name, q in names.items()} | {
        "mean": round(float(sampled.cast(pl.Int64()).sum()) / len(sampled), 3)
    }


def samples(policy: Policy) -> int:
    """Return the number of samples per prompt."""
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
