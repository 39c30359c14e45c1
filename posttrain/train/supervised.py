"""The stages `base` and `sft`: the likelihood of given text."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from pydantic import Field, model_validator

from posttrain.algorithms.supervised import LikelihoodKnobs, LikelihoodObjective
from posttrain.errors import ParamsError
from posttrain.measure.phases import phase
from posttrain.models.rounding import SaveDtype
from posttrain.models.runtime import Runtime
from posttrain.models.store import load_policy, load_tokenizer, new_model, save_model
from posttrain.params import Params, load
from posttrain.slots import model_slot, needed_model, table_slot
from posttrain.tables.store import read_table
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.epochs import Epochs, Item, stack
from posttrain.train.estimate import most_tokens
from posttrain.train.model_set import ModelSet
from posttrain.train.rows import demonstrations, windows
from posttrain.train.settings import TrainingParams, adamw, run_training
from posttrain.workspace import any_leads_out, metrics_path, model_path, rounded, table_path, write_json


class ScratchParams(Params):
    """The shape of a model from scratch (Qwen3's architecture)."""

    layers: int = Field(3, ge=1, le=1000, description="decoder layers")
    width: int = Field(64, ge=8, le=100_000, description="hidden size")
    heads: int = Field(2, ge=1, le=10_000, description="attention heads")
    feed_forward: int = Field(192, ge=8, le=1_000_000, description="width of the feed-forward layers")
    context: int = Field(512, ge=16, le=100_000_000, description="longest sequence")
    spread: float = Field(0.08, gt=0, lt=1, description="deviation of the random start; 0.02 learns far slower here")

    @model_validator(mode="after")
    def _whole_heads(self) -> ScratchParams:
        if self.width % (2 * self.heads):
            raise ValueError(f"width = {self.width} is no even multiple of heads = {self.heads}. Change one of them")
        return self


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


class ImportParams(Params):
    """What every model that is not trained here can be told."""

    save_dtype: SaveDtype | None = Field(None, description="dtype of the saved weights; null: as the files have them")


class FolderRun(ImportParams):
    """One run of `base.folders`: a model that you have, in a folder."""

    path: str = Field(min_length=1, description="a folder with config.json, *.safetensors and a tokenizer")
    outside_workspace: bool = Field(False, description="let `path` lead out of the workspace")


class HubRun(ImportParams):
    """One run of `base.hub`: a model of the Hugging Face Hub."""

    name: str = Field(min_length=1, description="the Hub name, e.g. Qwen/Qwen3-0.6B")
    revision: str = Field(
        pattern="^[0-9a-f]{40}$", description="the commit's full hash of 40 digits: a tag or a branch can move"
    )


class SftRun(TrainingParams):
    """One run of `sft.runs`: learning from demonstrations."""

    start: str = model_slot("the model it starts from")
    data: str = table_slot("chat", description="the demonstrations")
    epochs: float = Field(3.0, gt=0, description="times through the demonstrations")
    batch: int = Field(16, ge=1, description="demonstrations per step")
    max_tokens: int = Field(256, ge=8, description="longer rows are left out, and counted")
    objective: LikelihoodKnobs = Field(default_factory=LikelihoodKnobs)


def train_base(run: str) -> None:
    """Train a tokenizer and a model from scratch on a corpus."""
    params = load(ScratchRun, f"base.scratch.{run}")
    scratch = Path(f"models/.tokenizer-{run}")
    try:
        _from_scratch(f"base@{run}", params, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def import_folder(run: str) -> None:
    """Check a model of the user's own and copy it to models/base/RUN."""
    params, where = load(FolderRun, f"base.folders.{run}"), f"base.folders.{run}.path = "
    if any_leads_out(params.path) and not params.outside_workspace:
        fix = f"Copy the model into the workspace, or set base.folders.{run}.outside_workspace: true"
        where += f"{params.path} (params.yaml)"
        raise ParamsError(what="the path leads out of the workspace", where=where, fix=fix)
    _import(run, params.path, None, params.save_dtype)


def import_hub(run: str) -> None:
    """Download a model of the Hub at its commit, check it and write it to models/base/RUN."""
    params = load(HubRun, f"base.hub.{run}")
    _import(run, params.name, params.revision, params.save_dtype)


def _import(run: str, source: str, revision: str | None, save_dtype: SaveDtype | None) -> None:
    from posttrain.models.given import fetch_model

    name = f"base@{run}"
    fetch_model(source, revision, model_path(name), save_dtype)
    write_json(metrics_path(name), {"source": source, **({} if revision is None else {"revision": revision})})
    print(f"base {run}: {source} checked and saved in {model_path(name)}")


def _from_scratch(name: str, params: ScratchRun, scratch: Path) -> None:
    corpus = table_path(params.data)
    frame = read_table(corpus, "corpus")
    documents = {split: frame.filter(split=split)["text"].to_list() for split in ("train", "heldout")}
    with phase("train"):
        train_tokenizer(documents["train"], params.tokenizer, scratch)
    text = ChatText(load_tokenizer(scratch), str(scratch))
    items, heldout = (windows(text, documents[split], params.window, str(corpus)) for split in ("train", "heldout"))
    model = new_model(_config(params, text), params.seed)
    epochs = params.steps * params.batch / len(items)
    _fit(name, params, [corpus], model, items, heldout, params.batch, epochs, LikelihoodKnobs(), scratch)


def finetune(run: str) -> None:
    """Train the start model on demonstrations."""
    params = load(SftRun, f"sft.runs.{run}")
    folder, chat = needed_model(params.start, f"sft.runs.{run}.start"), table_path(params.data)
    text = ChatText(load_tokenizer(folder), str(folder), today=params.date)
    model = load_policy(folder)
    frame = read_table(chat, "chat")
    items, heldout = (
        demonstrations(text, frame.filter(split=split).iter_rows(named=True), params.max_tokens, str(chat))
        for split in ("train", "heldout")
    )
    inputs = [folder, chat]
    _fit(f"sft@{run}", params, inputs, model, items, heldout, params.batch, params.epochs, params.objective, folder)


def _fit(
    name: str,
    params: TrainingParams,
    inputs: list[Path],
    model: Any,
    items: Sequence[Item],
    heldout: Sequence[Item],
    batch: int,
    epochs: float,
    knobs: LikelihoodKnobs,
    tokenizer: Path,
) -> None:
    runtime = Runtime(params.device)
    models = ModelSet(model.to(runtime.torch), runtime, micro_tokens=params.micro_tokens)
    source = Epochs(items, batch, epochs, params.seed)
    update = adamw(models.trained, params, source.steps)
    objective = LikelihoodObjective(knobs)
    most = most_tokens(items, batch)
    log = run_training(name, params, inputs, objective, source, models, update, ("loss",), step_tokens=most)
    save_model(models.policy, model_path(name), tokenizer, params.save_dtype)
    tokens = sum(len(row.rest) for item in items for row in item.rows)
    summary = {"train_loss": log.tail("loss", 20), "heldout_loss": _mean_loss(models, heldout)}
    write_json(metrics_path(name), {"steps": source.steps, "rows": len(items), "tokens": tokens, **rounded(summary)})
    print(f"{name}: held-out loss {summary['heldout_loss']:.3f}, saved in {model_path(name)}")


@torch.no_grad()
def _mean_loss(models: ModelSet, items: Sequence[Item]) -> float:
    """Mean negative log-likelihood per token."""
    batch = models.add_scored_columns(stack(items), frozenset({"anchor"}))
    return -float(batch.columns.tokens["anchor"].double().mean())


def _config(params: ScratchRun, text: ChatText) -> Any:
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    shape = params.shape
    return Qwen3Config(
        vocab_size=len(text.tokenizer),
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        head_dim=shape.width // shape.heads,
        intermediate_size=shape.feed_forward,
        max_position_embeddings=shape.context,
        tie_word_embeddings=True,
        initializer_range=shape.spread,
        eos_token_id=text.stop,
        pad_token_id=text.tokenizer.pad_token_id,
    )
