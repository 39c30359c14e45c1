"""reward: a reward model from the comparisons, on the SFT model's backbone."""

from __future__ import annotations

from posttrain.params import load
from posttrain.stage import run_stage
from posttrain.train.preferences import RewardParams, train_reward


def main() -> None:
    """Writes models/reward, metrics/reward.json and plots/reward.csv."""
    train_reward(load(RewardParams, "reward"))


if __name__ == "__main__":
    run_stage(main)
