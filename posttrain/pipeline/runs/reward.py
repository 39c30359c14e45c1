"""The settings of `reward.runs` and `reward.sets`."""

from __future__ import annotations

from pydantic import Field, model_validator

from posttrain.algorithms.reward import RewardConfig
from posttrain.evaluate.table_watch import WATCH, TableWatch
from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.settings.params import Params
from posttrain.settings.plain import NONE
from posttrain.train.examples import RowLimit
from posttrain.train.heldout import HeldoutRows
from posttrain.train.loop import TrainingParams


class RewardRun(TrainingParams, RowLimit, HeldoutRows):
    """One run of `reward.runs`: a reward model."""

    rate_kind = "reward"
    start: str = model_slot("the model whose backbone it takes; of a reward model also the head", scores=None)
    data: str = table_slot("pairs", description="the comparisons")
    feedback: str = table_slot("feedback", description="judged answers, of compare ranks and labels", optional=True)
    demonstrations: str = table_slot("chat", description="answers whose mean score becomes 0", optional=True)
    epochs: float = Field(2.0, gt=0, description="times through the comparisons")
    batch: int = Field(16, ge=1, description="comparisons per step")
    shown: int = Field(500, ge=1, description="so many demonstrations are scored")
    objective: RewardConfig = Field(default_factory=RewardConfig)
    watch: TableWatch | None = WATCH

    @model_validator(mode="after")
    def _supplied(self) -> RewardRun:
        compare = self.objective.compare
        if (compare != "pairs") != (self.feedback != NONE):
            what = f"objective.compare = {compare}, feedback = {self.feedback}: ranks and labels read feedback alone"
            raise ValueError(f"{what}. Name a table of feedback with one of these, or feedback: none")
        if compare == "ranks" and self.objective.margins == "column":
            raise ValueError("objective.margins = column: feedback has no margins. Use compare pairs, or constant")
        return self


class SetRun(Params):
    """One run of `reward.sets`: reward models or teachers for one run that has several."""

    first: str = model_slot("a reward model or a teacher, or a set of them", scores=None, sets=True)
    second: str = model_slot("another one of its kind", scores=None, sets=True)
