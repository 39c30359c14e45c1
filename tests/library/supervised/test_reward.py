"""The settings of a reward model."""

from __future__ import annotations

from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.supervised.reward import RewardTraining


def test_goal() -> None:
    config = RewardConfig(margin=0.5)
    assert RewardTraining(objective=config).goal() == RewardObjective(config)
