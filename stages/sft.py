"""sft: one run of supervised fine-tuning on demonstrations, or of further pretraining on a corpus."""

from __future__ import annotations

from posttrain.api.train import train_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.likelihood import save_likelihood
from posttrain.pipeline.runs.sft import sft_rows
from posttrain.pipeline.runs.training import training_stage


def main(run: str) -> None:
    """Write models/sft/RUN, metrics/sft/RUN.json and plots/sft/RUN.csv."""
    stage = training_stage("sft", run)
    rows = sft_rows(stage)
    trained = train_model(
        rows.models, rows.text, rows.examples, config=stage.params, heldout=rows.watched, heldout_table=rows.table,
        checkpoints=stage.checkpoints(rows.models), recorder=stage.recorder, name=stage.name,
    )  # fmt: skip
    save_likelihood(stage, trained, rows)


if __name__ == "__main__":
    run_named_stage(main)
