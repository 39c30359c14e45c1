"""reward: one run that trains a reward model on comparisons."""

from __future__ import annotations

from posttrain.api.train import train_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.reward import measure_scores, reward_rows
from posttrain.pipeline.runs.training import training_stage


def main(run: str) -> None:
    """Write models/reward/RUN, metrics/reward/RUN.json and plots/reward/RUN.csv."""
    stage = training_stage("reward", run)
    rows, shown = reward_rows(stage)
    trained = train_model(
        rows.models, rows.text, rows.examples, config=stage.params, heldout=rows.watched,
        checkpoints=stage.checkpoints(rows.models), recorder=stage.recorder, name=stage.name,
    )  # fmt: skip
    measured = measure_scores(trained, rows.heldout, shown)
    counts = {"steps": trained.steps, "pairs": len(rows.examples)}
    stage.save(trained, {**counts, **trained.kept, **measured})
    print(f"{stage.name}: held-out accuracy {measured['heldout_accuracy']:.3f}, saved in {stage.saved}")


if __name__ == "__main__":
    run_named_stage(main)
