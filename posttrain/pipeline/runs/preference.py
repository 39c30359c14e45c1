"""The settings of `preference.runs`, and the batches that follow from them."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from posttrain.algorithms.preference_config import PREFERENCE_ROWS, PreferenceConfig
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.data.columns import Kind
from posttrain.errors import ParamsError
from posttrain.evaluate.table_watch import WATCH, TableWatch
from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.train.batch_sources import BatchSource, ChunkedSource, EpochSource, Example, KtoSource
from posttrain.train.examples import RowLimit
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from posttrain.train.run_config import Algorithms


class PreferenceRun(TrainingParams, RowLimit, PreferenceConfig):
    """One run of `preference.runs`: an algorithm, any of its settings, and how it is trained."""

    rate_kind = "preference"

    algorithm: str = Field(description="a row of docs/reference/algorithms.md")
    start: str = model_slot("the model it starts from")
    data: str = table_slot("pairs", "feedback", description="comparisons, or feedback for kto and bco")
    epochs: float = Field(1.0, gt=0, description="times through the data")
    batch: int = Field(16, ge=1, description="comparisons or judged answers per step")
    watch: TableWatch | None = WATCH

    @property
    def reference_moves(self) -> bool:
        """Whether each part of the data has another reference."""
        return self.parts > 1


PREFERENCE = Algorithms((PREFERENCE_ROWS, lambda _: PreferenceRun))


def preference_source(
    objective: PreferenceObjective, examples: Sequence[Example], batch: int, epochs: float, seed: int, models: ModelSet
) -> BatchSource:
    """Return the batch source that the objective needs."""
    source, parts = KtoSource if objective.mismatched else EpochSource, objective.knobs.parts
    if parts > 1:
        return ChunkedSource(examples, batch, epochs, seed, parts=parts, models=models, source=source)
    return source(examples, batch, epochs, seed)


def needed_kind(params: PreferenceRun, section: str) -> Kind:
    """Return the kind of table that the run learns from; refuses another one."""
    kind: Kind = "pairs" if params.paired else "feedback"
    run, _, named = params.data.partition("/")
    if named != kind:
        what = f"{section}.data = '{params.data}': {params.algorithm} learns from a table of {kind}"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Name one, e.g. {run}/{kind}")
    return kind
