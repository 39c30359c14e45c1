"""evaluate_runs: one run of `evaluate.runs`. Scores its completions, or measures likelihoods on its table."""

from __future__ import annotations

from posttrain.api.evaluate import score_completions
from posttrain.api.likelihood import evaluate_likelihood
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.evaluation_stage import table_evaluation


def main(run: str) -> None:
    """Write results/NAME/rollouts.parquet and results/NAME/metrics.json."""
    with table_evaluation(run) as stage:
        if stage.params.by == "likelihood":
            measured = evaluate_likelihood(
                stage.folder, None, stage.rows(), stage.kind, reference=stage.reference, config=stage.params,
                where=stage.section,
            )  # fmt: skip
            stage.save(measured)
            return
        measured = score_completions(
            stage.judged(), config=stage.params, text=stage.text(), reward_model=stage.reward_model,
            name=stage.name, where=stage.section,
        )  # fmt: skip
        stage.save(measured)


if __name__ == "__main__":
    run_named_stage(main)
