"""The settings of `base.scratch`, `base.folders` and `base.hub`, and the creation of a new model."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pydantic import Field

from posttrain.measure.phases import phase
from posttrain.models.device import Runtime
from posttrain.models.files.save_dtype import SaveDtype
from posttrain.models.files.store import load_tokenizer, new_model
from posttrain.models.files.tokenizer import TemplateParams
from posttrain.models.scratch import scratch_config
from posttrain.pipeline.params.slots import table_slot
from posttrain.pipeline.runs.training import RunInputs, TrainingRows
from posttrain.pipeline.tables.store import read_table
from posttrain.supervised.scratch import ScratchConfig
from posttrain.text.bpe import train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.train.heldout import HeldoutRows, rows_of
from posttrain.train.model_set import ModelSet
from posttrain.train.tokenize_tables import windows


class ScratchRun(ScratchConfig, HeldoutRows):
    """One run of `base.scratch`: a small model trained on a corpus."""

    data: str = table_slot("corpus", description="the texts to train on")


class FolderRun(TemplateParams):
    """One run of `base.folders`: your own model in a folder."""

    path: str = Field(min_length=1, description="a folder with config.json, *.safetensors and a tokenizer")
    outside_workspace: bool = Field(False, description="allow `path` to lead out of the workspace")
    save_dtype: SaveDtype | None = Field(None, description="dtype of the saved weights; null: same as the files")


class HubRun(TemplateParams):
    """One run of `base.hub`: a model from the Hugging Face Hub."""

    name: str = Field(min_length=1, description="the Hub name, e.g. Qwen/Qwen3-0.6B")
    revision: str = Field(
        pattern="^[0-9a-f]{40}$", description="the commit's full hash (40 digits), because a tag or a branch can move"
    )
    save_dtype: SaveDtype | None = Field(None, description="dtype of the saved weights; null: same as the files")


@contextmanager
def scratch_rows(reads: RunInputs[ScratchRun]) -> Iterator[TrainingRows]:
    """Yield the windows of the corpus and a new model, whose tokenizer is in a temporary folder."""
    folder = Path(f"models/.tokenizer-{reads.name.partition('@')[2]}")
    try:
        yield _rows(reads, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _rows(reads: RunInputs[ScratchRun], folder: Path) -> TrainingRows:
    """Train the tokenizer into the folder. Return the windows of the corpus and a new model."""
    params, corpus = reads.params, reads.table(reads.params.data)
    frame = read_table(corpus, "corpus")
    with phase("train"):
        train_tokenizer(frame.filter(split="train")["text"].to_list(), params.tokenizer, folder)
    text = ChatText(load_tokenizer(folder), str(folder), variables=params.template)
    examples, heldout = (
        windows(text, rows_of(frame, split, params), params.window, str(corpus)) for split in ("train", "heldout")
    )
    runtime = Runtime(params.device)
    config = scratch_config(params.shape, len(text.tokenizer), stop=text.stop, pad=text.tokenizer.pad_token_id)
    model = new_model(config, params.seed).to(runtime.device)
    models = ModelSet(model, runtime, micro_tokens=params.micro_tokens, folder=folder)
    return TrainingRows(models, text, examples, heldout)
