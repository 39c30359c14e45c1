"""evaluate_ratings: one run of `evaluate.ratings`. Compares policies on the prompts of their evaluations."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.report.ratings import rating_lines
from posttrain.pipeline.runs.evaluate_ratings import rate


def main(run: str) -> None:
    """Write metrics/ratings/RUN.parquet and metrics/ratings/RUN.json."""
    print("\n".join(rating_lines(run, rate(run))))


if __name__ == "__main__":
    run_named_stage(main)
