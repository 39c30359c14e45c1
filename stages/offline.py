"""offline: one run of reinforcement learning on an earlier run's stored rollouts, without sampling."""

from __future__ import annotations

from posttrain.api.stored import train_on_rollouts
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.offline import offline_run
from posttrain.pipeline.runs.training import training_stage


def main(run: str) -> None:
    """Write models/offline/RUN, metrics/offline/RUN.json and plots/offline/RUN.csv."""
    stage = training_stage("offline", run)
    models, rollouts = offline_run(stage)
    trained = train_on_rollouts(
        models, None, rollouts, stage.params, checkpoints=stage.checkpoints(models), recorder=stage.recorder,
        name=stage.name,
    )  # fmt: skip
    figures = trained.means(stage.params.progress)
    stage.save(trained, {"algorithm": stage.params.algorithm, "steps": trained.steps, **figures})


if __name__ == "__main__":
    run_named_stage(main)
