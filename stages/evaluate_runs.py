"""evaluate_runs: one run of `evaluate.runs`, a policy on a table of its own, by its samples or by likelihoods."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluate_runs import evaluate_table


def main(run: str) -> None:
    """Writes results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    evaluate_table(run)


if __name__ == "__main__":
    run_named_stage(main)
