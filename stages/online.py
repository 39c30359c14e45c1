"""online: one run of reinforcement learning (GRPO, PPO and others) on the policy's own samples."""

from __future__ import annotations

from posttrain.api.online import train_online
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.online import online_run
from posttrain.pipeline.runs.training import training_stage


def main(run: str) -> None:
    """Write models/online/RUN, rollouts/online/RUN, metrics/online/RUN.json and plots/online/RUN.csv."""
    stage = training_stage("online", run)
    given = online_run(stage)
    trained = train_online(
        given.models, given.text, given.prompts, config=stage.params, heldout=given.heldout,
        reward_model=given.reward_model, corpus=given.examples, checkpoints=stage.checkpoints(given.models),
        recorder=stage.recorder, name=stage.name,
    )  # fmt: skip
    stage.save_sampled(trained)


if __name__ == "__main__":
    run_named_stage(main)
