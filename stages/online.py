"""online: one run of reinforcement learning (GRPO, PPO and others) on the policy's own samples."""

from __future__ import annotations

from posttrain.api.online import train_online
from posttrain.files import rounded
from posttrain.pipeline.params.named_runs import load_run
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.online import ONLINE, online_run
from posttrain.pipeline.runs.training import TrainingStage


def main(run: str) -> None:
    """Writes models/online/RUN, rollouts/online/RUN, metrics/online/RUN.json and plots/online/RUN.csv."""
    params = load_run(f"online.runs.{run}", ONLINE)
    stage = TrainingStage(f"online@{run}", params)
    given = online_run(stage)
    trained = train_online(
        given.models, given.text, given.prompts, config=params, heldout=given.heldout,
        reward_model=given.reward_model, checkpoints=stage.checkpoints(given.models), recorder=stage.recorder,
        name=stage.name,
    )  # fmt: skip
    figures = rounded(trained.means(params.summary)) | trained.figures
    stage.save(trained, {"algorithm": params.algorithm, "steps": trained.steps, **figures, **trained.kept})


if __name__ == "__main__":
    run_named_stage(main)
