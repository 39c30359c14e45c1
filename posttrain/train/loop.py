"""A training run: its settings, and the loop, which knows an algorithm only by its objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import torch
from pydantic import Field
from torch import Tensor, nn

from posttrain.algorithms.objective import Objective, State
from posttrain.errors import CheckpointError, TrainingError
from posttrain.measure.phases import phase
from posttrain.measure.record import note
from posttrain.measure.timings import restore_timings, timings_state
from posttrain.models.device import DeviceParams
from posttrain.models.rounding import SaveDtype
from posttrain.models.store import save_model
from posttrain.params import Params
from posttrain.progress import Progress
from posttrain.text.chat import DATE, TemplateDate
from posttrain.train import randomness
from posttrain.train.checkpoint import Checkpoints, Saved
from posttrain.train.epochs import EpochSource, Source
from posttrain.train.estimate import check_memory, checkpoint_bytes, explained_out_of_memory, most_tokens
from posttrain.train.examples import Examples
from posttrain.train.heldout import mean_loss
from posttrain.train.limits import LimitParams, within
from posttrain.train.metrics import MetricsLog
from posttrain.train.model_set import ModelSet
from posttrain.train.step import AdamW, OptimizerParams, StepClosure, Update
from posttrain.workspace import metrics_path, model_path, plot_path, rounded, write_json


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
    with explained_out_of_memory(models, step_tokens, name):
        log = train(run)
    checkpoints.finish(plot)
    return log


def train_likelihood(
    name: str,
    params: TrainingParams,
    inputs: list[Path],
    objective: Objective,
    source: EpochSource,
    models: ModelSet,
    examples: Examples,
    heldout: Examples,
    *,
    start: Path,
) -> None:
    """Learn given rows; writes the model, with the tokenizer of `start`, and its metrics."""
    update = adamw(models.trained, params, source.steps)
    tokens = most_tokens(examples.tokens, source.batch_size)
    log = run_training(name, params, inputs, objective, source, models, update, ("loss",), step_tokens=tokens)

    save_model(models.policy, model_path(name), start, params.save_dtype)
    losses = {"train_loss": log.tail("loss", 20), "heldout_loss": mean_loss(models, heldout)}
    counts = {"steps": source.steps, "rows": len(examples), "tokens": examples.learned}
    write_json(metrics_path(name), {**counts, **rounded(losses)})
    print(f"{name}: held-out loss {losses['heldout_loss']:.3f}, saved in {model_path(name)}")


@dataclass(frozen=True)
class Run:
    """Everything that one training run is made of."""

    name: str
    objective: Objective
    source: Source
    models: ModelSet
    update: Update
    checkpoints: Checkpoints
    log_path: Path
    checkpoint_every: int
    watch: tuple[str, ...] = ("loss",)
    limits: LimitParams = field(default_factory=LimitParams)


def train(run: Run) -> MetricsLog:
    """Run every step that is not done yet and give back the log of all of them."""
    first, state, rows = run.checkpoints.resume(lambda saved: _restore(run, saved)) or (0, None, None)
    state = run.objective.initial_state() if state is None else state
    log = MetricsLog(run.log_path, rows)
    progress = Progress(run.name, run.source.steps, done=first)
    for step in range(first, run.source.steps):
        batch = run.models.add_scored_columns(run.source.batch(step), run.objective.needs)
        with phase("train"):
            prepared = run.objective.prepare(batch.columns, state)
            for model in run.models.trained.values():
                model.train()
            closure = StepClosure(run.objective, run.models, batch.with_prepared(prepared.step))
            metrics = run.update.step(closure, step / run.source.steps)
            state = prepared.state
        log.add({"step": step, **metrics, **prepared.metrics, **run.source.metrics()})
        well = within(run.limits, log.rows, run.name)
        progress.advance(1, {name: log.rows[-1][name] for name in run.watch if name in log.rows[-1]})
        if well and ((step + 1) % run.checkpoint_every == 0 or step + 1 == run.source.steps):
            run.checkpoints.save(_saved(run, step + 1, state, log))
    progress.close({name: log.rows[-1][name] for name in run.watch if log.rows and name in log.rows[-1]})
    for model in run.models.trained.values():
        model.eval()
    return log


def _saved(run: Run, step: int, state: State, log: MetricsLog) -> Saved:
    tensors = {f"update.{name}": part for name, part in run.update.state_dict().items()}
    tensors |= {f"source.{name}": part for name, part in run.source.state_dict().items()}
    tensors |= run.models.trained_parameters()
    tensors |= {f"random.{name}": part for name, part in randomness.states(run.models.runtime.torch).items()}
    return Saved(step, tensors, {"objective": state, "rows": log.rows, "time": timings_state()})


def _restore(run: Run, saved: Saved) -> tuple[int, State, list[dict[str, float]]]:
    """Put every part of the run back where the checkpoint left it, or nothing of it if a part does not fit."""
    trained = run.models.trained_parameters()
    _check_fit(trained, run.objective.initial_state(), saved)
    try:
        state, rows = dict(saved.plain["objective"]), list(saved.plain["rows"])
        run.update.load_state_dict(saved.under("update."))
        run.source.load_state_dict(saved.under("source."))
        randomness.restore(saved.under("random."), run.models.runtime.torch)
    except (LookupError, ValueError, RuntimeError, TypeError) as error:
        # checksum, fingerprint and weights are right, so this is no accident, and the run is half loaded
        what = f"step {saved.step} was made by another version of the run ({error!r})"
        raise TrainingError(what=what, where=f"the checkpoints of {run.name}", fix="Delete them") from error
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(saved.tensors[name])
    restore_timings(saved.plain.get("time"))
    print(f"{run.name}: goes on from the checkpoint at step {saved.step} of {run.source.steps}")
    return saved.step, state, rows


def _numbers(value: Any) -> TypeGuard[dict[str, float]]:
    """Whether it is names with a number each."""
    return isinstance(value, dict) and all(type(one) in (int, float) for one in value.values())


def _check_fit(trained: Mapping[str, Tensor], start: State, saved: Saved) -> None:
    """Every weight is there, finite and of its shape, there are no others, and each step has its row of metrics."""
    rows, state = saved.plain.get("rows"), saved.plain.get("objective")
    listed = isinstance(rows, list) and all(_numbers(row) for row in rows) and len(rows) == saved.step
    if not listed or not _numbers(state) or state.keys() != start.keys():
        raise CheckpointError(
            what="its metrics or its state are not whole", where=f"step {saved.step}", fix="Delete it"
        )
    kinds = tuple({f"{name.split('.')[0]}." for name in trained})
    faults = [f"it lacks {name}" for name in trained if name not in saved.tensors]
    faults += [f"it has a foreign {name}" for name in saved.tensors if name.startswith(kinds) and name not in trained]
    for name in trained.keys() & saved.tensors.keys():
        mine, theirs = trained[name], saved.tensors[name]
        if mine.shape != theirs.shape:
            faults.append(f"{name} has shape {list(theirs.shape)}, expected {list(mine.shape)}")
        elif not torch.isfinite(theirs).all():
            faults.append(f"{name} is not finite")
    if faults:
        raise CheckpointError(what="; ".join(sorted(faults)[:5]), where=f"step {saved.step}", fix="Delete it")
