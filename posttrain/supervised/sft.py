"""The settings of supervised fine-tuning."""

from __future__ import annotations

from pydantic import Field

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.evaluate.table_watch import WATCH, DemonstrationWatch, MeasuredObjective
from posttrain.supervised.config import EpochsConfig
from posttrain.text.chat import Trained
from posttrain.train.examples import RowLimit
from posttrain.train.limits import TextLimits


class SftConfig(EpochsConfig, RowLimit):
    """The settings of supervised fine-tuning, or of more pretraining on a corpus."""

    epochs: float = Field(3.0, gt=0, description="passes through the rows")
    batch: int = Field(16, ge=1, description="demonstrations, or windows of text, per step")
    window: int = Field(512, ge=2, description="tokens per window of a corpus; max_tokens does not apply to windows")
    turns: Trained = Field("all", description="assistant turns to train on: all, or the last of each row")
    objective: LikelihoodConfig = Field(default_factory=LikelihoodConfig)
    limits: TextLimits = Field(default_factory=TextLimits)
    watch: DemonstrationWatch | None = WATCH

    def goal(self) -> MeasuredObjective:
        """Return the likelihood of the rows."""
        return LikelihoodObjective(self.objective)
