"""The settings of `sft.runs`."""

from __future__ import annotations

from pydantic import Field, model_validator

from posttrain.algorithms.supervised import LikelihoodConfig
from posttrain.data.columns import Kind
from posttrain.evaluate.table_watch import WATCH, DemonstrationWatch
from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.text.chat import Trained
from posttrain.train.examples import RowLimit
from posttrain.train.heldout import HeldoutRows
from posttrain.train.limits import TextLimits
from posttrain.train.loop import TrainingParams


class SftRun(TrainingParams, RowLimit, HeldoutRows):
    """One run of `sft.runs`: learning from demonstrations, or more pretraining of a model on a corpus."""

    start: str = model_slot("the model it starts from")
    data: str = table_slot("chat", "corpus", description="the demonstrations, or the text of more pretraining")
    epochs: float = Field(3.0, gt=0, description="times through the rows")
    batch: int = Field(16, ge=1, description="demonstrations, or windows of text, per step")
    window: int = Field(512, ge=2, description="tokens per window of a corpus, which max_tokens does not count for")
    turns: Trained = Field("all", description="the assistant's turns that are trained: all, or the last of each row")
    objective: LikelihoodConfig = Field(default_factory=LikelihoodConfig)
    limits: TextLimits = Field(default_factory=TextLimits)
    watch: DemonstrationWatch | None = WATCH

    @property
    def kind(self) -> Kind:
        """The kind of the table."""
        return "corpus" if self.data.endswith("/corpus") else "chat"

    @model_validator(mode="after")
    def _samples_prompts(self) -> SftRun:
        if self.kind == "corpus" and self.watch is not None and self.watch.reward is not None:
            raise ValueError("watch.reward samples the prompts of demonstrations, and a corpus has none. Remove it")
        return self
