"""Read the rollouts of a run with polars alone: how the reward rose, what was hard, what the figures come from.

    python examples/read_rollouts.py rollouts/online/grpo

docs/watching.md has the columns. Nothing of posttrain is imported, so this runs wherever polars is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import polars as pl


def by_round(rows: pl.DataFrame) -> pl.DataFrame:
    """The mean reward, length and share of truncated samples of each round."""
    return rows.group_by("round", maintain_order=True).agg(
        pl.len().alias("samples"),
        pl.col("reward").mean(),
        pl.col("length").mean(),
        (pl.col("finish") == "length").mean().alias("truncated"),
    )


def hardest(rows: pl.DataFrame, count: int) -> pl.DataFrame:
    """The prompts with the lowest mean outcome, and how often each was drawn."""
    prompts = rows.group_by("prompt_id", "problem").agg(pl.col("outcome").mean(), pl.col("draw").n_unique())
    return prompts.sort("outcome", "prompt_id").head(count)


def parts(rows: pl.DataFrame) -> pl.DataFrame:
    """Each reward's mean, and how many of its scores failed."""
    scores = rows.select(pl.col("scores").explode()).unnest("scores")
    failed = pl.col("status").is_in(["timeout", "error", "infrastructure"])
    return (
        scores.group_by("name").agg(pl.col("value").filter(~failed).mean(), failed.sum().alias("failed")).sort("name")
    )


def groups_without_gradient(rows: pl.DataFrame) -> float:
    """The share of groups whose rewards are all equal."""
    return float((rows.group_by("draw").agg(pl.col("reward").n_unique())["reward"] <= 1).mean() or 0.0)


def best_and_worst(rows: pl.DataFrame) -> pl.DataFrame:
    """The samples with the highest and the lowest advantage, where their text is stored."""
    seen = rows.filter(pl.col("completion").is_not_null() & pl.col("advantage").is_not_null()).sort("advantage")
    return pl.concat([seen.tail(1), seen.head(1)]).select("step", "version", "advantage", "reward", "completion")


def main(arguments: Sequence[str] | None = None) -> pl.DataFrame:
    """Print all of it; gives the table by rounds."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="a run's folder under rollouts/")
    args = parser.parse_args(arguments)
    rows = pl.read_parquet(f"{args.folder}/*.parquet")
    rounds = by_round(rows)
    for title, table in (
        ("by round", rounds),
        ("hardest prompts", hardest(rows, 5)),
        ("rewards", parts(rows)),
        ("highest and lowest advantage", best_and_worst(rows)),
    ):
        print(f"{title}\n{table}\n")
    print(f"groups without a gradient: {groups_without_gradient(rows):.0%}")
    return rounds


if __name__ == "__main__":
    main()
