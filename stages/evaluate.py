"""evaluate: one policy on the test prompts; NAME is its folder under models/, e.g. sft or online/grpo."""

from __future__ import annotations

from posttrain.evaluate.policy import EvaluateParams, evaluate, summary
from posttrain.params import load
from posttrain.stage import run_named_stage


def main(name: str) -> None:
    """Writes results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    print(summary(name, evaluate(name, load(EvaluateParams, "evaluate"))))


if __name__ == "__main__":
    run_named_stage(main)
