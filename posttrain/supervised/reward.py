"""The settings of a reward model."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.evaluate.table_watch import WATCH, MeasuredObjective, TableWatch
from posttrain.supervised.config import EpochsConfig
from posttrain.train.examples import RowLimit


class RewardTraining(EpochsConfig, RowLimit):
    """The settings of a reward model."""

    rate_kind = "reward"
    scores = True
    progress: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    epochs: float = Field(2.0, gt=0, description="passes through the comparisons")
    batch: int = Field(16, ge=1, description="comparisons per step")
    objective: RewardConfig = Field(default_factory=RewardConfig)
    watch: TableWatch | None = WATCH

    def goal(self) -> MeasuredObjective:
        """Return the Bradley-Terry loss."""
        return RewardObjective(self.objective)
