"""The settings of `preference.runs`, and the inputs of such a run."""

from __future__ import annotations

from typing import Any

from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.api.models import models_from
from posttrain.data.columns import Kind
from posttrain.errors import ParamsError
from posttrain.evaluate.table_watch import heldout_rows
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.slots import model_slot, table_slot
from posttrain.pipeline.runs.training import RunInputs, TrainingRows
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.supervised.preference import PreferenceTraining
from posttrain.train.run_config import Algorithms
from posttrain.train.tokenize_tables import comparisons, feedback


class PreferenceRun(PreferenceTraining):
    """One run of `preference.runs`: an algorithm, its settings, and the training settings."""

    start: str = model_slot("the start model")
    data: str = table_slot("pairs", "feedback", description="comparisons; feedback for kto and bco")


PREFERENCE = Algorithms((PREFERENCE_ROWS, lambda _: PreferenceRun))


def needed_kind(params: PreferenceRun, section: str) -> Kind:
    """Return the kind of table that the run trains on. Reject another kind."""
    kind: Kind = "pairs" if params.paired else "feedback"
    run, _, named = params.data.partition("/")
    if named != kind:
        what = f"{section}.data = '{params.data}': {params.algorithm} needs a table of {kind}"
        raise ParamsError(what=what, where=PARAMS_FILE, fix=f"Use one, e.g. {run}/{kind}")
    return kind


def preference_rows(reads: RunInputs[Any]) -> TrainingRows:
    """Return the tokenized rows of a run and the models."""
    params, section = reads.params, reads.section
    start, table = reads.start(params.start), reads.table(params.data)
    kind = needed_kind(params, section)

    text = load_text(start, params.date, params.template)
    frame = read_table(table, kind)
    tokenize = feedback if kind == "feedback" else comparisons
    examples = tokenize(text, frame.filter(split="train"), params, str(table))
    watched = heldout_rows(frame, params.watch, table)
    if params.parts > len(examples):
        what = f"{section}.parts = {params.parts} parts cannot be made of {len(examples)} rows"
        raise ParamsError(what=what, where=PARAMS_FILE, fix="Use fewer")
    if params.mismatched and text.context is not None and examples.longest_mismatched > text.context:
        what = f"{params.algorithm} also pairs prompts with answers of other rows, which makes rows of up to "
        what += f"{examples.longest_mismatched} tokens, more than the model's context of {text.context}"
        fix = f"Set {section}.max_tokens: {text.context // 2}"
        raise ParamsError(what=what, where=str(table), fix=fix)
    models = models_from(start, params)
    seen = tokenize(text, watched, params, str(table)) if params.watch else ()
    return TrainingRows(models, text, examples, (), seen)
