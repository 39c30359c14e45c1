"""What every training stage can be told, and the pieces that are built from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field
from torch import nn

from posttrain.algorithms.objective import Objective
from posttrain.measure.record import note
from posttrain.models.device import DeviceParams
from posttrain.models.rounding import SaveDtype
from posttrain.params import Params
from posttrain.text.chat import DATE, TemplateDate
from posttrain.train import randomness
from posttrain.train.batch import Source
from posttrain.train.checkpoint import Checkpoints
from posttrain.train.estimate import check_memory, checkpoint_bytes, told_out_of_memory
from posttrain.train.limits import LimitParams
from posttrain.train.loop import Run, train
from posttrain.train.metrics import MetricsLog
from posttrain.train.model_set import ModelSet
from posttrain.train.optimizer import AdamW, OptimizerParams, Update
from posttrain.workspace import plot_path


class TrainingParams(Params):
    """Shared by all stages that train."""

    seed: int = Field(0, ge=0, lt=2**32, description="decides the order of rows and every sample")
    optimizer: OptimizerParams = Field(default_factory=OptimizerParams)
    device: DeviceParams = Field(default_factory=DeviceParams)
    micro_tokens: int = Field(16_384, ge=64, description="most tokens in one forward pass (memory, not results)")
    checkpoint_every: int = Field(50, ge=1, description="optimizer steps between checkpoints")
    limits: LimitParams = Field(default_factory=LimitParams)
    save_dtype: SaveDtype | None = Field(
        None,
        description="dtype of the saved weights; null: that of the start model's files, float32 from scratch",
    )
    date: TemplateDate = Field(DATE, description="what a chat template that asks for today's date gets")


RUNS_ON = "runs_on"
"""The type of the device, among the settings that a checkpoint is known by."""


def decisive(params: TrainingParams) -> dict[str, Any]:
    """The settings that change the training, as plain data: those that a checkpoint is known by."""
    return params.model_dump(mode="json", exclude={"limits", "checkpoint_every", "save_dtype"})


def adamw(trained: Mapping[str, nn.Module], params: TrainingParams, steps: int) -> AdamW:
    """The ordinary update rule over trained models, by name."""
    rates = {"policy": params.optimizer.lr, "critic": params.optimizer.critic_lr or params.optimizer.lr}
    return AdamW([(model, rates[name]) for name, model in trained.items()], params.optimizer, steps)


def run_training(
    name: str,
    params: TrainingParams,
    inputs: list[Path],
    objective: Objective,
    source: Source,
    models: ModelSet,
    update: Update,
    watch: tuple[str, ...],
    *,
    step_tokens: int,
) -> MetricsLog:
    """Train under the stage's own checkpoints, which stay until DVC has recorded the results.

    `step_tokens`: the most tokens that an optimizer step can hold, for the estimate of memory.
    """
    checkpoints = Checkpoints(name, {**decisive(params), RUNS_ON: models.runtime.torch.type}, inputs)
    plot = plot_path(name)
    check_memory(models, step_tokens, params.limits.memory, name)
    checkpoints.check_space(checkpoint_bytes(models))
    run = Run(name, objective, source, models, update, checkpoints, plot, params.checkpoint_every, watch, params.limits)
    randomness.seed(params.seed)
    note(seed=params.seed)
    with told_out_of_memory(models, step_tokens, name):
        log = train(run)
    checkpoints.finish(plot)
    return log
