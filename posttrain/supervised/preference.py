"""The settings of preference optimisation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, cast

from pydantic import Field

from posttrain.algorithms.preference_config import PREFERENCE_ROWS, PreferenceConfig
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.evaluate.table_watch import WATCH, TableWatch
from posttrain.settings.params import check
from posttrain.supervised.config import EpochsConfig
from posttrain.train.batch_sources import BatchSource, ChunkedSource, EpochSource, Example, KtoSource
from posttrain.train.examples import RowLimit
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms


class PreferenceTraining(EpochsConfig, RowLimit, PreferenceConfig):
    """The settings of preference optimisation: an algorithm, its settings, and the training settings."""

    rate_kind = "preference"
    example: ClassVar[str] = "dpo"
    """The algorithm in error messages' examples."""
    progress: ClassVar[tuple[str, ...]] = ("loss", "accuracy")

    algorithm: str = Field(description="a preset in docs/reference/algorithms.md")
    epochs: float = Field(1.0, gt=0, description="passes through the data")
    batch: int = Field(16, ge=1, description="comparisons or judged answers per step")
    watch: TableWatch | None = WATCH

    @classmethod
    def preset(cls, algorithm: str, **settings: Any) -> PreferenceTraining:
        """Return the settings of an algorithm (dpo, simpo, kto, ...) with the given settings replaced.

        Example: `PreferenceTraining.preset("dpo", loss={"type": "dpo", "beta": 0.3}, epochs=2)`
        """
        entry = PREFERENCES.entry(algorithm)
        merged = entry.row.merged({**settings, "algorithm": algorithm})
        return cast("PreferenceTraining", check(entry.model, merged, where=algorithm, file="settings"))

    @property
    def reference_moves(self) -> bool:
        """True if each part of the data has its own reference."""
        return self.parts > 1

    def goal(self) -> PreferenceObjective:
        """Return the algorithm's objective."""
        return PreferenceObjective(self)

    @property
    def mismatched(self) -> bool:
        """True if prompts are also combined with other rows' answers."""
        return self.goal().mismatched

    def source(self, examples: Sequence[Example], models: ModelSet) -> BatchSource:
        """Return the batches that the objective needs."""
        return preference_source(self.goal(), examples, self.batch, self.epochs, self.seed, models)

    def step_tokens(self, examples: Sequence[Example]) -> int:
        """Return the maximum number of tokens of a step, including mismatched rows if the objective needs them."""
        return super().step_tokens(examples) * (2 if self.mismatched else 1)


PREFERENCES = Algorithms((PREFERENCE_ROWS, lambda _: PreferenceTraining))
"""Preference algorithm -> its settings."""


def preference_source(
    objective: PreferenceObjective, examples: Sequence[Example], batch: int, epochs: float, seed: int, models: ModelSet
) -> BatchSource:
    """Return the batch source that the objective needs."""
    source, parts = KtoSource if objective.mismatched else EpochSource, objective.config.parts
    if parts > 1:
        return ChunkedSource(examples, batch, epochs, seed, parts=parts, models=models, source=source)
    return source(examples, batch, epochs, seed)
