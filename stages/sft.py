"""sft: one run of supervised fine-tuning on demonstrations, or of more pretraining on a corpus."""

from __future__ import annotations

import polars as pl

from posttrain.algorithms.supervised import LikelihoodObjective
from posttrain.evaluate.table_watch import demonstration_watch, heldout_rows
from posttrain.models.device import Runtime
from posttrain.models.files.text import load_text
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.params.slots import needed_model
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.likelihood import save_likelihood
from posttrain.pipeline.runs.sft import SftRun
from posttrain.pipeline.runs.training import run_watched, share_run
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import table_path
from posttrain.train.batch_sources import EpochSource
from posttrain.train.estimate import most_tokens
from posttrain.train.examples import Examples
from posttrain.train.heldout import rows_of
from posttrain.train.loop import TrainingRun, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import demonstrations, windows


def main(run: str) -> None:
    """Writes models/sft/RUN, metrics/sft/RUN.json and plots/sft/RUN.csv."""
    name, section = f"sft@{run}", f"sft.runs.{run}"
    params = load(SftRun, section)
    share_run(name, params)
    start, table = needed_model(params.start, f"{section}.start"), table_path(params.data)

    text = load_text(start, params.date, params.template)
    frame = read_table(table, params.kind)

    def tokenized(rows: pl.DataFrame) -> Examples:
        if params.kind == "corpus":
            return windows(text, rows, params.window, str(table))
        return demonstrations(text, rows, params, str(table), params.turns)

    examples, heldout = (tokenized(rows_of(frame, split, params)) for split in ("train", "heldout"))
    rows = heldout_rows(frame, params.watch, table)
    del frame  # training reads the rows from their file

    objective = LikelihoodObjective(params.objective)
    models = ModelSet.load(Runtime(params.device), start, objective.needs, params)

    source = EpochSource(examples, params.batch, params.epochs, params.seed)
    update = adamw(models.trained, params, source.steps, models.policy)
    step_tokens = most_tokens(examples.tokens, params.batch)
    training = TrainingRun(name, params, objective, source, models, update, step_tokens)
    seen = tokenized(rows) if params.watch else []
    watch = demonstration_watch(training, objective, params.watch, seen, rows, text)
    log, watched = run_watched(training, [start, table], watch)
    save_likelihood(training, log, examples, heldout, start, watched)


if __name__ == "__main__":
    run_named_stage(main)
