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
from posttrain.models.device import Device
from posttrain.models.store import load_policy, load_tokenizer, new_model, save_model
from posttrain.params import Params
from posttrain.tables.store import read_table
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.epochs import Epochs, Item, stack
from posttrain.train.modules import Modules
from posttrain.train.rows import demonstrations, windows
from posttrain.train.settings import TrainingParams, adamw, run_training
from posttrain.workspace import any_leads_out, metrics_path, model_path, rounded, write_json

SCRATCH = "scratch"
CORPUS, CHAT = Path("data/corpus.parquet"), Path("data/chat.parquet")


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


class BaseParams(TrainingParams):
    """Section `base`: where the base model comes from."""

    model: str = Field(SCRATCH, min_length=1, description="'scratch', a local folder, or a Hub name")
    revision: str | None = Field(None, description="the Hub commit; needed for a Hub name")
    outside_workspace: bool = Field(False, description="let `model` be a folder outside the workspace")
    tokenizer: BpeParams = Field(default_factory=BpeParams)
    shape: ScratchParams = Field(default_factory=ScratchParams)
    steps: int = Field(850, ge=1, description="optimizer steps from scratch")
    batch: int = Field(32, ge=1, description="windows per step")
    window: int = Field(64, ge=2, description="tokens per window")

    @model_validator(mode="after")
    def _revision_of_something(self) -> BaseParams:
        if self.model == SCRATCH and self.revision is not None:
            raise ValueError("revision belongs to a Hub name, and model is scratch. Remove it")
        return self

    @model_validator(mode="after")
    def _window_in_context(self) -> BaseParams:
        if self.model == SCRATCH and self.window > self.shape.context:
            raise ValueError(f"window = {self.window} is longer than shape.context = {self.shape.context}. Change one")
        return self


class SftParams(TrainingParams):
    """Section `sft`: learning from demonstrations."""

    epochs: float = Field(3.0, gt=0, description="times through the demonstrations")
    batch: int = Field(16, ge=1, description="demonstrations per step")
    max_tokens: int = Field(256, ge=8, description="longer rows are left out, and counted")
    objective: LikelihoodKnobs = Field(default_factory=LikelihoodKnobs)


def make_base(params: BaseParams) -> None:
    """Train a base model from scratch on the corpus, or take a given one."""
    if params.model != SCRATCH:
        from posttrain.models.given import fetch_model

        if Path(params.model).exists() and any_leads_out(params.model) and not params.outside_workspace:
            mend = "Copy the model into the workspace, or set base.outside_workspace: true"
            where = f"base.model = {params.model} (params.yaml)"
            raise ParamsError(what="the path leads out of the workspace", where=where, mend=mend)
        fetch_model(params.model, params.revision, model_path("base"))
        write_json(metrics_path("base"), {"source": params.model})
        return
    scratch = Path("models/.tokenizer")
    try:
        _from_scratch(params, scratch)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _from_scratch(params: BaseParams, scratch: Path) -> None:
    """Train a tokenizer and a model on the corpus."""
    frame = read_table(CORPUS, "corpus")
    documents = {split: frame.filter(split=split)["text"].to_list() for split in ("train", "heldout")}
    with phase("train"):
        train_tokenizer(documents["train"], params.tokenizer, scratch)
    text = ChatText(load_tokenizer(scratch), str(scratch))
    items, heldout = (windows(text, documents[split], params.window, str(CORPUS)) for split in ("train", "heldout"))
    model = new_model(_config(params, text), params.seed)
    epochs = params.steps * params.batch / len(items)
    _fit("base", params, [CORPUS], model, items, heldout, params.batch, epochs, LikelihoodKnobs(), scratch)


def finetune(params: SftParams) -> None:
    """Train the base model on the demonstrations."""
    folder = model_path("base")
    text = ChatText(load_tokenizer(folder), str(folder), today=params.date)
    model = load_policy(folder)
    frame = read_table(CHAT, "chat")
    items, heldout = (
        demonstrations(text, frame.filter(split=split).iter_rows(named=True), params.max_tokens, str(CHAT))
        for split in ("train", "heldout")
    )
    _fit("sft", params, [folder, CHAT], model, items, heldout, params.batch, params.epochs, params.objective, folder)


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
    device = Device(params.device)
    modules = Modules(model.to(device.torch), device, micro_tokens=params.micro_tokens)
    source = Epochs(items, batch, epochs, params.seed)
    update = adamw(modules, params, source.steps)
    objective = LikelihoodObjective(knobs)
    log = run_training(name, params, inputs, objective, source, modules, update, ("loss",))
    save_model(modules.policy, model_path(name), tokenizer)
    tokens = sum(len(ids) for item in items for ids in item.completions)
    summary = {"train_loss": log.tail("loss", 20), "heldout_loss": _mean_loss(modules, heldout)}
    write_json(metrics_path(name), {"steps": source.steps, "rows": len(items), "tokens": tokens, **rounded(summary)})
    print(f"{name}: held-out loss {summary['heldout_loss']:.3f}, saved in {model_path(name)}")


@torch.no_grad()
def _mean_loss(modules: Modules, items: Sequence[Item]) -> float:
    """Mean negative log-likelihood per token."""
    batch = modules.fill(stack(items), frozenset({"anchor"}))
    return -float(batch.columns.tokens["anchor"].double().mean())


def _config(params: BaseParams, text: ChatText) -> Any:
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
