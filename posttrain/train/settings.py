"""What every training stage can be told, and the pieces that are built from it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from posttrain.algorithms.objective import Objective
from posttrain.models.device import DeviceParams
from posttrain.params import Params
from posttrain.train.batch import Source
from posttrain.train.checkpoint import Checkpoints, fingerprint
from posttrain.train.loop import Run, train
from posttrain.train.metrics import MetricsLog
from posttrain.train.modules import Modules
from posttrain.train.optimizer import AdamW, OptimizerParams, Update
from posttrain.workspace import plot_path


class TrainingParams(Params):
    """Shared by all stages that train."""

    seed: int = Field(0, ge=0, description="decides the order of rows and every sample")
    optimizer: OptimizerParams = Field(default_factory=OptimizerParams)
    device: DeviceParams = Field(default_factory=DeviceParams)
    micro_tokens: int = Field(16_384, ge=64, description="most tokens in one forward pass (memory, not results)")
    checkpoint_every: int = Field(50, ge=1, description="optimizer steps between checkpoints")


def adamw(modules: Modules, params: TrainingParams, steps: int) -> AdamW:
    """The ordinary update rule over all trained models."""
    rates = {"policy": params.optimizer.lr, "critic": params.optimizer.critic_lr or params.optimizer.lr}
    return AdamW([(module, rates[name]) for name, module in modules.trained.items()], params.optimizer, steps)


def run_training(
    name: str,
    params: TrainingParams,
    inputs: list[Path],
    objective: Objective,
    source: Source,
    modules: Modules,
    update: Update,
    watch: tuple[str, ...],
) -> tuple[MetricsLog, Checkpoints]:
    """Train under the stage's own checkpoints; they are cleared by the caller once the results are written."""
    mark = fingerprint(name, params.model_dump(mode="json"), inputs)
    checkpoints = Checkpoints(name, mark)
    run = Run(name, objective, source, modules, update, checkpoints, plot_path(name), params.checkpoint_every, watch)
    return train(run), checkpoints
