"""The settings of training on rows of a table: demonstrations, preferences, comparisons, and text from scratch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, cast

from pydantic import Field, model_validator

from posttrain.algorithms.preference_config import PREFERENCE_ROWS, PreferenceConfig
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.evaluate.table_watch import WATCH, DemonstrationWatch, MeasuredObjective, TableWatch
from posttrain.models.scratch import ScratchParams
from posttrain.settings.params import check
from posttrain.text.bpe import BpeParams
from posttrain.text.chat import Trained
from posttrain.train.batch_sources import BatchSource, ChunkedSource, EpochSource, Example, KtoSource, StepSource
from posttrain.train.estimate import most_tokens
from posttrain.train.examples import Examples, RowLimit
from posttrain.train.limits import TextLimits
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms


class SupervisedConfig(TrainingParams):
    """The settings of every training on rows of a table."""

    progress: ClassVar[tuple[str, ...]] = ("loss",)
    """Metrics shown in the progress line."""
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
        """How held-out rows are measured while it trains; None where they are not."""
        return getattr(self, "watch", None)

    def source(self, examples: Sequence[Example], models: ModelSet) -> BatchSource:
        """Return the batches."""
        raise NotImplementedError

    def step_tokens(self, examples: Sequence[Example]) -> int:
        """Return the most tokens of an optimizer step."""
        if isinstance(examples, Examples):
            return most_tokens(examples.tokens, self.batch)
        return most_tokens([sum(map(len, example.rows)) for example in examples], self.batch)


class EpochsConfig(SupervisedConfig):
    """The settings of a training that goes through its rows several times."""

    epochs: float = Field(1.0, gt=0, description="times through the rows")

    def source(self, examples: Sequence[Example], models: ModelSet) -> BatchSource:  # noqa: ARG002
        """Return the batches of each epoch."""
        return EpochSource(examples, self.batch, self.epochs, self.seed)


class SftConfig(EpochsConfig, RowLimit):
    """The settings of supervised fine-tuning, or of more pretraining on a corpus."""

    epochs: float = Field(3.0, gt=0, description="times through the rows")
    batch: int = Field(16, ge=1, description="demonstrations, or windows of text, per step")
    window: int = Field(512, ge=2, description="tokens per window of a corpus, which max_tokens does not count for")
    turns: Trained = Field("all", description="the assistant's turns that are trained: all, or the last of each row")
    objective: LikelihoodConfig = Field(default_factory=LikelihoodConfig)
    limits: TextLimits = Field(default_factory=TextLimits)
    watch: DemonstrationWatch | None = WATCH

    def goal(self) -> MeasuredObjective:
        """Return the likelihood of the rows."""
        return LikelihoodObjective(self.objective)


class ScratchConfig(SupervisedConfig):
    """The settings of a small model that is trained from scratch on a corpus."""

    rate_kind = "scratch"

    tokenizer: BpeParams = Field(default_factory=BpeParams)
    shape: ScratchParams = Field(default_factory=ScratchParams)
    processes: Literal[1] = Field(1, description="a new model is small: one process")
    shards: None = None
    steps: int = Field(
        850, ge=1, description="optimizer steps, exactly; the corpus is repeated as often as they need it"
    )
    batch: int = Field(
        32, ge=1, description="windows per step; the last of each pass through the corpus may be smaller"
    )
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
        """Return exactly so many batches."""
        return StepSource(examples, self.batch, self.steps, self.seed)


class PreferenceTraining(EpochsConfig, RowLimit, PreferenceConfig):
    """The settings of preference optimisation: an algorithm, any of its settings, and how it is trained."""

    rate_kind = "preference"
    progress: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    algorithm: str = Field(description="a row of docs/reference/algorithms.md")
    epochs: float = Field(1.0, gt=0, description="times through the data")
    batch: int = Field(16, ge=1, description="comparisons or judged answers per step")
    watch: TableWatch | None = WATCH

    @classmethod
    def preset(cls, algorithm: str, **settings: Any) -> PreferenceTraining:
        """Return the settings of an algorithm (dpo, simpo, kto, ...), with some replaced.

        Example: `PreferenceTraining.preset("dpo", loss={"type": "dpo", "beta": 0.3}, epochs=2)`
        """
        found = PREFERENCES.entry(algorithm)
        merged = found.row.merged({**settings, "algorithm": algorithm})
        return cast("PreferenceTraining", check(found.model, merged, where=algorithm, file="settings"))

    @property
    def reference_moves(self) -> bool:
        """Whether each part of the data has another reference."""
        return self.parts > 1

    def goal(self) -> PreferenceObjective:
        """Return the algorithm's objective."""
        return PreferenceObjective(self)

    @property
    def mismatched(self) -> bool:
        """Whether prompts are also answered with other rows' answers."""
        return self.goal().mismatched

    def source(self, examples: Sequence[Example], models: ModelSet) -> BatchSource:
        """Return the batches that the objective needs."""
        return preference_source(self.goal(), examples, self.batch, self.epochs, self.seed, models)

    def step_tokens(self, examples: Sequence[Example]) -> int:
        """Return the rows, and as many mismatched ones where the objective needs them."""
        return super().step_tokens(examples) * (2 if self.mismatched else 1)


class RewardTraining(EpochsConfig, RowLimit):
    """The settings of a reward model."""

    rate_kind = "reward"
    progress: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    epochs: float = Field(2.0, gt=0, description="times through the comparisons")
    batch: int = Field(16, ge=1, description="comparisons per step")
    objective: RewardConfig = Field(default_factory=RewardConfig)
    watch: TableWatch | None = WATCH

    def goal(self) -> MeasuredObjective:
        """Return the Bradley-Terry loss."""
        return RewardObjective(self.objective)


PREFERENCES = Algorithms((PREFERENCE_ROWS, lambda _: PreferenceTraining))
"""Preference algorithm -> its settings."""


def preference_source(
    objective: PreferenceObjective, examples: Sequence[Example], batch: int, epochs: float, seed: int, models: ModelSet
) -> BatchSource:
    """Return the batch source that the objective needs."""
    source, parts = KtoSource if objective.mismatched else EpochSource, objective.knobs.parts
    if parts > 1:
        return ChunkedSource(examples, batch, epochs, seed, parts=parts, models=models, source=source)
    return source(examples, batch, epochs, seed)
