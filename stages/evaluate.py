"""evaluate: evaluate one policy of `evaluate.policies` on held-out prompts. NAME is its label there, e.g. grpo."""

from __future__ import annotations

from posttrain.api.evaluate import evaluate_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluation_stage import policy_evaluation


def main(label: str) -> None:
    """Write results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    with policy_evaluation(label) as stage:
        policy = stage.policy()
        measured = evaluate_model(
            policy, None, stage.prompts(policy), config=stage.params, reference=stage.reference,
            reward_model=stage.reward_model, sampler=stage.sampler, name=stage.name, where=stage.section,
        )  # fmt: skip
        stage.save(measured)


if __name__ == "__main__":
    run_named_stage(main)
