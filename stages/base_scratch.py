"""base_scratch: one run of `base.scratch`. Trains a small model from scratch on a corpus."""

from __future__ import annotations

from posttrain.api.train import train_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.base import scratch_rows
from posttrain.pipeline.runs.likelihood import save_likelihood
from posttrain.pipeline.runs.training import training_stage


def main(run: str) -> None:
    """Write models/base/RUN, metrics/base/RUN.json and plots/base/RUN.csv."""
    stage = training_stage("base_scratch", run)
    with scratch_rows(stage) as rows:
        trained = train_model(
            rows.models, rows.text, rows.examples, config=stage.params,
            checkpoints=stage.checkpoints(rows.models), recorder=stage.recorder, name=stage.name,
        )  # fmt: skip
        save_likelihood(stage, trained, rows)


if __name__ == "__main__":
    run_named_stage(main)
