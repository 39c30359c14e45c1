"""The settings of every training on rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from pydantic import Field

from posttrain.evaluate.table_watch import MeasuredObjective, TableWatch
from posttrain.train.batch_sources import BatchSource, EpochSource, Example
from posttrain.train.estimate import most_tokens
from posttrain.train.examples import Examples
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet


class SupervisedConfig(TrainingParams):
    """The settings of every training on rows of a table."""

    progress: ClassVar[tuple[str, ...]] = ("loss",)
    """Metrics in the progress line."""
    scores: ClassVar[bool] = False
    """True if the trained model is a reward model."""
    batch: int = Field(16, ge=1, description="rows per step")

    def goal(self) -> MeasuredObjective:
        """Return the objective of the training."""
        raise NotImplementedError

    @property
    def needs(self) -> frozenset[str]:
        """The columns that the objective reads."""
        return self.goal().needs

    @property
    def watched(self) -> TableWatch | None:
        """The evaluation of held-out rows during training; None if there is none."""
        return getattr(self, "watch", None)

    def source(self, examples: Sequence[Example], models: ModelSet) -> BatchSource:
        """Return the batches."""
        raise NotImplementedError

    def step_tokens(self, examples: Sequence[Example]) -> int:
        """Return the maximum number of tokens of an optimizer step."""
        if isinstance(examples, Examples):
            return most_tokens(examples.tokens, self.batch)
        return most_tokens([sum(map(len, example.rows)) for example in examples], self.batch)


class EpochsConfig(SupervisedConfig):
    """The settings of a training that repeats its rows for several epochs."""

    epochs: float = Field(1.0, gt=0, description="passes through the rows")

    def source(self, examples: Sequence[Example], models: ModelSet) -> BatchSource:  # noqa: ARG002
        """Return the batches of each epoch."""
        return EpochSource(examples, self.batch, self.epochs, self.seed)
