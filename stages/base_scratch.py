"""base_scratch: one run of `base.scratch`, a small model trained from scratch on a corpus."""

from __future__ import annotations

import shutil
from pathlib import Path

from pydantic import Field, model_validator

from posttrain.algorithms.supervised import LikelihoodKnobs, LikelihoodObjective
from posttrain.measure.phases import phase
from posttrain.models.device import Runtime
from posttrain.models.scratch import ScratchParams, scratch_config
from posttrain.models.store import load_tokenizer, new_model, save_model
from posttrain.params import load
from posttrain.slots import table_slot
from posttrain.stage import run_named_stage
from posttrain.tables.store import read_table
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.epochs import EpochSource
from posttrain.train.estimate import most_tokens
from posttrain.train.heldout import mean_loss
from posttrain.train.loop import TrainingParams, adamw, run_training
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import windows
from posttrain.workspace import metrics_path, model_path, rounded, table_path, write_json


class ScratchRun(TrainingParams):
    """One run of `base.scratch`: a small model trained on a corpus."""

    data: str = table_slot("corpus", description="the texts it learns")
    tokenizer: BpeParams = Field(default_factory=BpeParams)
    shape: ScratchParams = Field(default_factory=ScratchParams)
    steps: int = Field(850, ge=1, description="optimizer steps")
    batch: int = Field(32, ge=1, description="windows per step")
    window: int = Field(64, ge=2, description="tokens per window")

    @model_validator(mode="after")
    def _window_in_context(self) -> ScratchRun:
        if self.window > self.shape.context:
            raise ValueError(f"window = {self.window} is longer than shape.context = {self.shape.context}. Change one")
        return self


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
    documents = {split: frame.filter(split=split)["text"].to_list() for split in ("train", "heldout")}
    with phase("train"):
        train_tokenizer(documents["train"], params.tokenizer, scratch)
    text = ChatText(load_tokenizer(scratch), str(scratch))
    examples, heldout = (windows(text, documents[split], params.window, str(corpus)) for split in ("train", "heldout"))

    runtime = Runtime(params.device)
    config = scratch_config(params.shape, len(text.tokenizer), stop=text.stop, pad=text.tokenizer.pad_token_id)
    model = new_model(config, params.seed).to(runtime.torch)
    models = ModelSet(model, runtime, micro_tokens=params.micro_tokens)

    source = EpochSource(examples, params.batch, params.steps * params.batch / len(examples), params.seed)
    log = run_training(
        name,
        params,
        [corpus],
        LikelihoodObjective(LikelihoodKnobs()),
        source,
        models,
        adamw(models.trained, params, source.steps),
        ("loss",),
        step_tokens=most_tokens(examples, params.batch),
    )

    save_model(models.policy, model_path(name), scratch, params.save_dtype)
    tokens = sum(len(row.rest) for example in examples for row in example.rows)
    losses = {"train_loss": log.tail("loss", 20), "heldout_loss": mean_loss(models, heldout)}
    write_json(metrics_path(name), {"steps": source.steps, "rows": len(examples), "tokens": tokens, **rounded(losses)})
    print(f"{name}: held-out loss {losses['heldout_loss']:.3f}, saved in {model_path(name)}")


if __name__ == "__main__":
    run_named_stage(main)
