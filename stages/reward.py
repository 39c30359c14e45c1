"""reward: one run of a reward model from comparisons."""

from __future__ import annotations

from posttrain.stage import run_named_stage
from posttrain.train.preferences import train_reward


def main(run: str) -> None:
    """Writes models/reward/RUN, metrics/reward/RUN.json and plots/reward/RUN.csv."""
    train_reward(run)


if __name__ == "__main__":
    run_named_stage(main)
