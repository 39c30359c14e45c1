"""The settings of a small model that is trained from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field, model_validator

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.evaluate.table_watch import MeasuredObjective
from posttrain.models.scratch import ScratchParams
from posttrain.supervised.config import SupervisedConfig
from posttrain.text.bpe import BpeParams
from posttrain.train.batch_sources import BatchSource, Example, StepSource
from posttrain.train.limits import TextLimits
from posttrain.train.model_set import ModelSet


class ScratchConfig(SupervisedConfig):
    """The settings of a small model that is trained from scratch on a corpus."""

    rate_kind = "scratch"

    tokenizer: BpeParams = Field(default_factory=BpeParams)
    shape: ScratchParams = Field(default_factory=ScratchParams)
    processes: Literal[1] = Field(1, description="always 1, because a new model is small")
    shards: None = None
    steps: int = Field(850, ge=1, description="exact number of optimizer steps; the corpus is repeated as needed")
    batch: int = Field(32, ge=1, description="windows per step; the last step of each pass may have fewer")
    window: int = Field(64, ge=2, description="tokens per window")
    limits: TextLimits = Field(default_factory=TextLimits)

    @model_validator(mode="after")
    def _can_be_trained(self) -> ScratchConfig:
        if self.adapter.type != "none":
            raise ValueError("a new model has nothing to keep frozen. Remove adapter")
        if self.window > self.shape.context:
            raise ValueError(f"window = {self.window} is longer than shape.context = {self.shape.context}. Change one")
        return self

    def goal(self) -> MeasuredObjective:
        """Return the likelihood of the text."""
        return LikelihoodObjective(LikelihoodConfig())

    def source(self, examples: Sequence[Example], models: ModelSet) -> BatchSource:  # noqa: ARG002
        """Return a source with exactly the configured number of steps."""
        return StepSource(examples, self.batch, self.steps, self.seed)
