"""evaluate: one policy of `evaluate.policies` on held-out prompts; NAME is its label there, e.g. grpo."""

from __future__ import annotations

from posttrain.evaluate.policy import evaluate, summary
from posttrain.stage import run_named_stage


def main(name: str) -> None:
    """Writes results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    print(summary(name, evaluate(name)))


if __name__ == "__main__":
    run_named_stage(main)
