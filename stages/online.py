"""online: one named run of reinforcement learning (GRPO, PPO and their kin) on the policy's own samples."""

from __future__ import annotations

from posttrain.online.run import train_online
from posttrain.stage import run_named_stage


def main(run: str) -> None:
    """Writes models/online/RUN, metrics/online/RUN.json and plots/online/RUN.csv."""
    train_online(run)


if __name__ == "__main__":
    run_named_stage(main)
