"""sft: one run of supervised fine-tuning on demonstrations, or of more pretraining on a corpus."""

from __future__ import annotations

import polars as pl
from pydantic import Field, model_validator

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.data.columns import Kind
from posttrain.evaluate.table_watch import WATCH, DemonstrationWatch, demonstration_watch, heldout_rows
from posttrain.models.device import Runtime
from posttrain.models.files.text import load_text
from posttrain.params.params_file import load
from posttrain.params.slots import model_slot, needed_model, table_slot
from posttrain.processes.stage import run_named_stage
from posttrain.runs.likelihood import save_likelihood
from posttrain.runs.training import run_watched, share_run
from posttrain.tables.store import read_table
from posttrain.text.chat import Trained
from posttrain.train.batch_sources import EpochSource
from posttrain.train.estimate import most_tokens
from posttrain.train.examples import Examples, RowLimit
from posttrain.train.heldout import HeldoutRows, rows_of
from posttrain.train.limits import TextLimits
from posttrain.train.loop import TrainingParams, TrainingRun, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import demonstrations, windows
from posttrain.workspace import table_path


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
