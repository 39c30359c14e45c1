"""preference: one run of preference optimisation (DPO and its family) on pairs or feedback."""

from __future__ import annotations

from posttrain.api.train import train_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.preference import preference_rows
from posttrain.pipeline.runs.training import training_stage


def main(run: str) -> None:
    """Write models/preference/RUN, metrics/preference/RUN.json and plots/preference/RUN.csv."""
    stage = training_stage("preference", run)
    rows = preference_rows(stage)
    trained = train_model(
        rows.models, rows.text, rows.examples, config=stage.params, heldout=rows.watched,
        checkpoints=stage.checkpoints(rows.models), recorder=stage.recorder, name=stage.name,
    )  # fmt: skip
    measured = trained.means(stage.params.progress)
    stage.save(trained, {"algorithm": stage.params.algorithm, "steps": trained.steps, **measured, **trained.kept})


if __name__ == "__main__":
    run_named_stage(main)
