"""base_scratch: one run of `base.scratch`, a small model trained from scratch on a corpus."""

from __future__ import annotations

import shutil
from pathlib import Path

from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.measure.phases import phase
from posttrain.models.device import Runtime
from posttrain.models.files.store import load_tokenizer, new_model
from posttrain.models.scratch import scratch_config
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.processes.stage import run_named_stage
from posttrain.pipeline.runs.base import ScratchRun
from posttrain.pipeline.runs.likelihood import save_likelihood
from posttrain.pipeline.runs.training import run_training
from posttrain.pipeline.tables.store import read_table
from posttrain.pipeline.workspace import table_path
from posttrain.text.bpe import train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.batch_sources import StepSource
from posttrain.train.estimate import most_tokens
from posttrain.train.heldout import rows_of
from posttrain.train.loop import TrainingRun, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import windows


def main(run: str) -> None:
    """Writes models/base/RUN, metrics/base/RUN.json and plots/base/RUN.csv."""
    params = load(ScratchRun, f"base.scratch.{run}")
    scratch = Path(f"models/.tokenizer-{run}")
    try:
        _train(f"base@{run}", params, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _train(name: str, params: ScratchRun, scratch: Path) -> None:
    corpus = table_path(params.data)
    frame = read_table(corpus, "corpus")
    with phase("train"):
        train_tokenizer(frame.filter(split="train")["text"].to_list(), params.tokenizer, scratch)
    text = ChatText(load_tokenizer(scratch), str(scratch), variables=params.template)
    examples, heldout = (
        windows(text, rows_of(frame, split, params), params.window, str(corpus)) for split in ("train", "heldout")
    )

    runtime = Runtime(params.device)
    config = scratch_config(params.shape, len(text.tokenizer), stop=text.stop, pad=text.tokenizer.pad_token_id)
    model = new_model(config, params.seed).to(runtime.device)
    models = ModelSet(model, runtime, micro_tokens=params.micro_tokens)

    objective = LikelihoodObjective(LikelihoodConfig())
    source = StepSource(examples, params.batch, params.steps, params.seed)
    update = adamw(models.trained, params, source.steps, models.policy)
    step_tokens = most_tokens(examples.tokens, params.batch)
    training = TrainingRun(name, params, objective, source, models, update, step_tokens)
    save_likelihood(training, run_training(training, [corpus]), examples, heldout, scratch)


if __name__ == "__main__":
    run_named_stage(main)
