"""The settings of `base.scratch`, `base.folders` and `base.hub`: models that no run of params.yaml has trained."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from posttrain.models.files.save_dtype import SaveDtype
from posttrain.models.files.tokenizer import TemplateParams
from posttrain.models.scratch import ScratchParams
from posttrain.pipeline.params.slots import table_slot
from posttrain.text.bpe import BpeParams
from posttrain.train.heldout import HeldoutRows
from posttrain.train.limits import TextLimits
from posttrain.train.loop import TrainingParams


class ScratchRun(TrainingParams, HeldoutRows):
    """One run of `base.scratch`: a small model trained on a corpus."""

    rate_kind = "scratch"

    data: str = table_slot("corpus", description="the texts it learns")
    tokenizer: BpeParams = Field(default_factory=BpeParams)
    shape: ScratchParams = Field(default_factory=ScratchParams)
    processes: Literal[1] = Field(1, description="a new model is small: one process")
    shards: None = None
    steps: int = Field(
        850, ge=1, description="optimizer steps, exactly; the corpus is repeated as often as they need it"
    )
    batch: int = Field(
        32, ge=1, description="windows per step; the last of each pass through the corpus may be smaller"
    )
    window: int = Field(64, ge=2, description="tokens per window")
    limits: TextLimits = Field(default_factory=TextLimits)

    @model_validator(mode="after")
    def _can_be_trained(self) -> ScratchRun:
        if self.adapter.type != "none":
            raise ValueError("a new model has nothing to keep frozen. Remove adapter")
        if self.window > self.shape.context:
            raise ValueError(f"window = {self.window} is longer than shape.context = {self.shape.context}. Change one")
        return self


class FolderRun(TemplateParams):
    """One run of `base.folders`: a model that you have, in a folder."""

    path: str = Field(min_length=1, description="a folder with config.json, *.safetensors and a tokenizer")
    outside_workspace: bool = Field(False, description="let `path` lead out of the workspace")
    save_dtype: SaveDtype | None = Field(None, description="dtype of the saved weights; null: as the files have them")


class HubRun(TemplateParams):
    """One run of `base.hub`: a model of the Hugging Face Hub."""

    name: str = Field(min_length=1, description="the Hub name, e.g. Qwen/Qwen3-0.6B")
    revision: str = Field(
        pattern="^[0-9a-f]{40}$", description="the commit's full hash of 40 digits: a tag or a branch can move"
    )
    save_dtype: SaveDtype | None = Field(None, description="dtype of the saved weights; null: as the files have them")
