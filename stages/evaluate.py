"""evaluate: score the completions of one policy of `evaluate.policies`. NAME is its label there, e.g. grpo."""

from __future__ import annotations

from posttrain.api.evaluate import score_completions
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluation_stage import policy_evaluation


def main(label: str) -> None:
    """Write results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    with policy_evaluation(label) as stage:
        measured = score_completions(
            stage.judged(), config=stage.params, text=stage.text(), reward_model=stage.reward_model,
            name=stage.name, where=stage.section,
        )  # fmt: skip
        stage.save(measured)


if __name__ == "__main__":
    run_named_stage(main)
