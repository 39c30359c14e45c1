"""lm_eval: one run of `evaluate.lm_eval`. lm-evaluation-harness or another evaluator evaluates a model."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluator_runs import measure_by_evaluator


def main(name: str) -> None:
    """Write results/lm_eval/NAME/metrics.json and results/lm_eval/NAME/documents.parquet."""
    measure_by_evaluator(name)


if __name__ == "__main__":
    run_named_stage(main)
