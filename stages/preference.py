"""preference: one named run of preference optimisation (DPO and its family) on the pairs or the feedback."""

from __future__ import annotations

from posttrain.api.train import train_model
from posttrain.files import rounded
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.preference import PREFERENCE, preference_rows
from posttrain.pipeline.runs.training import TrainingStage


def main(run: str) -> None:
    """Writes models/preference/RUN, metrics/preference/RUN.json and plots/preference/RUN.csv."""
    params = load_run(f"preference.runs.{run}", PREFERENCE)
    stage = TrainingStage(f"preference@{run}", params)
    rows = preference_rows(stage)
    trained = train_model(
        rows.models, rows.text, rows.examples, config=params, heldout=rows.watched,
        checkpoints=stage.checkpoints(rows.models), recorder=stage.recorder, name=stage.name,
    )  # fmt: skip
    measured = rounded(trained.means(params.progress))
    stage.save(trained, {"algorithm": params.algorithm, "steps": trained.steps, **measured, **trained.kept})


if __name__ == "__main__":
    run_named_stage(main)
