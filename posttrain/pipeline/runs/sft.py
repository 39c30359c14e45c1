"""The settings of `sft.runs`, and the inputs of such a run."""

from __future__ import annotations

import polars as pl
from pydantic import model_validator

from posttrain.api.models import models_from
from posttrain.data.columns import Kind
from posttrain.evaluate.table_watch import heldout_rows
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.pipeline.runs.training import RunInputs, TrainingRows
from posttrain.pipeline.tables.store import read_table
from posttrain.supervised.sft import SftConfig
from posttrain.train.examples import Examples
from posttrain.train.heldout import HeldoutRows, rows_of
from posttrain.train.tokenize_tables import demonstrations, windows


class SftRun(SftConfig, HeldoutRows):
    """One run of `sft.runs`: training on demonstrations, or further pretraining on a corpus."""

    start: str = model_slot("the start model")
    data: str = table_slot("chat", "corpus", description="the demonstrations, or the texts for further pretraining")

    @property
    def kind(self) -> Kind:
        """The kind of the table."""
        return "corpus" if self.data.endswith("/corpus") else "chat"

    @model_validator(mode="after")
    def _samples_prompts(self) -> SftRun:
        if self.kind == "corpus" and self.watch is not None and self.watch.reward is not None:
            raise ValueError("watch.reward samples prompts of demonstrations, but a corpus has no prompts. Remove it")
        return self


def sft_rows(reads: RunInputs[SftRun]) -> TrainingRows:
    """Return the tokenized rows of a run and the models."""
    params, start, table = reads.params, reads.start(reads.params.start), reads.table(reads.params.data)
    text = load_text(start, params.date, params.template)
    frame = read_table(table, params.kind)

    def tokenized(rows: pl.DataFrame) -> Examples:
        if params.kind == "corpus":
            return windows(text, rows, params.window, str(table))
        return demonstrations(text, rows, params, str(table), params.turns)

    examples, heldout = (tokenized(rows_of(frame, split, params)) for split in ("train", "heldout"))
    rows = heldout_rows(frame, params.watch, table)
    del frame  # training reads the rows from their file
    models = models_from(start, params)
    return TrainingRows(models, text, examples, heldout, tokenized(rows) if params.watch else (), rows)
