"""evaluate_runs: one run of `evaluate.runs`. Evaluates a policy on its own table, by samples or by likelihoods."""

from __future__ import annotations

from posttrain.api.evaluate import evaluate_model
from posttrain.api.likelihood import evaluate_likelihood
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluation_stage import table_evaluation


def main(run: str) -> None:
    """Write results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    with table_evaluation(run) as stage:
        if stage.params.by == "samples":
            policy = stage.policy()
            measured = evaluate_model(
                policy, None, stage.prompts(policy), config=stage.params, reference=stage.reference,
                reward_model=stage.reward_model, sampler=stage.sampler, name=stage.name, where=stage.section,
            )  # fmt: skip
        else:
            measured = evaluate_likelihood(
                stage.folder, None, stage.rows(), stage.kind, reference=stage.reference, config=stage.params,
                where=stage.section,
            )  # fmt: skip
        stage.save(measured)


if __name__ == "__main__":
    run_named_stage(main)
