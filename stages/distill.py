"""distill: one run that learns from distributions of teachers, on given answers or own samples, and from rewards."""

from __future__ import annotations

from posttrain.api.teacher import distill
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.teachers import distill_run
from posttrain.pipeline.runs.training import training_stage


def main(run: str) -> None:
    """Write models/distill/RUN, rollouts/distill/RUN, metrics/distill/RUN.json and plots/distill/RUN.csv."""
    stage = training_stage("distill", run)
    given = distill_run(stage)
    trained = distill(
        given.models, given.text, None, given.prompts, config=stage.params, heldout=given.heldout,
        reward_model=given.reward_model, demonstrations=given.examples, checkpoints=stage.checkpoints(given.models),
        recorder=stage.recorder, name=stage.name,
    )  # fmt: skip
    stage.save_sampled(trained)


if __name__ == "__main__":
    run_named_stage(main)
