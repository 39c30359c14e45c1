"""evaluate: one policy of `evaluate.policies` on held-out prompts; NAME is its label there, e.g. grpo."""

from __future__ import annotations

from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluate_samples import evaluate_policy


def main(label: str) -> None:
    """Writes results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    evaluate_policy(label)


if __name__ == "__main__":
    run_named_stage(main)
