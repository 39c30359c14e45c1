"""offline: one run of reinforcement learning on rollouts that an earlier run stored, without sampling."""

from __future__ import annotations

from posttrain.files import rounded
from posttrain.online.stored import train_on_rollouts
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.offline import OFFLINE, offline_run
from posttrain.pipeline.runs.training import TrainingStage


def main(run: str) -> None:
    """Writes models/offline/RUN, metrics/offline/RUN.json and plots/offline/RUN.csv."""
    params = load_run(f"offline.runs.{run}", OFFLINE)
    stage = TrainingStage(f"offline@{run}", params)
    models, rollouts = offline_run(stage)
    trained = train_on_rollouts(stage.name, params, models, rollouts, stage.checkpoints(models), stage.recorder)
    figures = rounded(trained.means(params.progress))
    stage.save(trained, {"algorithm": params.algorithm, "steps": trained.steps, **figures})


if __name__ == "__main__":
    run_named_stage(main)
