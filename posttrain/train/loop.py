"""The training loop: the same for every algorithm, which it knows only by its objective."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import Tensor

from posttrain.algorithms.objective import Objective, State
from posttrain.errors import CheckpointError, TrainingError
from posttrain.measure.phases import phase
from posttrain.measure.timings import kept, resumed
from posttrain.progress import Progress
from posttrain.train import randomness
from posttrain.train.batch import Batch, Source
from posttrain.train.checkpoint import Checkpoints, Saved
from posttrain.train.limits import LimitParams, within
from posttrain.train.metrics import MetricsLog
from posttrain.train.modules import Modules, rows_of
from posttrain.train.optimizer import Update


@dataclass(frozen=True)
class Run:
    """Everything that one training run is made of."""

    name: str
    objective: Objective
    source: Source
    modules: Modules
    update: Update
    checkpoints: Checkpoints
    log_path: Path
    checkpoint_every: int
    watch: tuple[str, ...] = ("loss",)
    limits: LimitParams = field(default_factory=LimitParams)


@dataclass
class GradientProblem:
    """One optimizer step: the prepared rows, cut into micro-batches whose losses add up."""

    objective: Objective
    modules: Modules
    batch: Batch
    totals: dict[str, Tensor] = field(default_factory=dict)

    def backward(self) -> dict[str, float]:
        """Add up the gradients and metrics of all micro-batches; one transfer from the device at the end."""
        totals: dict[str, Tensor] = defaultdict(lambda: torch.zeros((), device=self.modules.device.torch))
        for micro in self.modules.micros(self.batch):
            for name, share in self._backward(micro).items():
                totals[name] = totals[name] + share
        values: list[float] = torch.stack([part.double() for part in totals.values()]).tolist()
        return dict(zip(totals, values, strict=True))

    def _backward(self, micro: Batch) -> dict[str, Tensor]:
        """Add one micro-batch's gradient; its loss and metrics."""
        if self.objective.by_token and len(micro):
            return self.modules.backward_by_token(micro, self.objective)
        loss = self.objective.loss(self.modules.with_gradient(micro, self.objective.needs))
        loss.total.backward()  # type: ignore[no-untyped-call]
        return {"loss": loss.total.detach(), **{name: share.detach() for name, share in loss.metrics.items()}}


def train(run: Run) -> MetricsLog:
    """Run every step that is not done yet and give back the log of all of them."""
    first, state, rows = run.checkpoints.resume(lambda saved: _restore(run, saved)) or (0, None, None)
    state = run.objective.initial_state() if state is None else state
    log = MetricsLog(run.log_path, rows)
    progress = Progress(run.name, run.source.steps, done=first)
    for step in range(first, run.source.steps):
        batch = run.modules.fill(run.source.batch(step), run.objective.needs)
        with phase("train"):
            prepared = run.objective.prepare(batch.columns, state)
            problem = _problem(run, batch.part(rows_of(prepared.step)).with_columns(prepared.step))
            for module in run.modules.trained.values():
                module.train()
            metrics = run.update.step(problem, step / run.source.steps)
            state = prepared.state
        log.add({"step": step, **metrics, **prepared.metrics, **run.source.seen()})
        well = within(run.limits, log.rows, run.name)
        progress.advance(1, {name: log.rows[-1][name] for name in run.watch if name in log.rows[-1]})
        if well and ((step + 1) % run.checkpoint_every == 0 or step + 1 == run.source.steps):
            run.checkpoints.save(_saved(run, step + 1, state, log))
    progress.close({name: log.rows[-1][name] for name in run.watch if log.rows and name in log.rows[-1]})
    for module in run.modules.trained.values():
        module.eval()
    return log


def _problem(run: Run, batch: Batch) -> GradientProblem:
    numbered = batch.columns.with_rows(row=torch.arange(len(batch)))
    batch = batch.with_columns(numbered)
    return GradientProblem(run.objective, run.modules, batch)


def _saved(run: Run, step: int, state: State, log: MetricsLog) -> Saved:
    tensors = {f"update.{name}": part for name, part in run.update.tensors().items()}
    tensors |= {f"source.{name}": part for name, part in run.source.tensors().items()}
    for kind, module in run.modules.trained.items():
        tensors |= {f"{kind}.{name}": part for name, part in module.named_parameters()}
    tensors |= {f"random.{name}": part for name, part in randomness.states(run.modules.device.torch).items()}
    return Saved(step, tensors, {"objective": state, "rows": log.rows, "time": kept()})


def _restore(run: Run, saved: Saved) -> tuple[int, State, list[dict[str, float]]]:
    """Put every part of the run back where the checkpoint left it, or nothing of it if a part does not fit."""
    trained = {
        f"{kind}.{name}": p for kind, module in run.modules.trained.items() for name, p in module.named_parameters()
    }
    _check_fit(trained, run.objective.initial_state(), saved)
    try:
        state, rows = dict(saved.plain["objective"]), list(saved.plain["rows"])
        run.update.load(saved.under("update."))
        run.source.load(saved.under("source."))
        randomness.restore(saved.under("random."), run.modules.device.torch)
    except (LookupError, ValueError, RuntimeError, TypeError) as error:
        # checksum, fingerprint and weights are right, so this is no accident, and the run is half loaded
        what = f"step {saved.step} was made by another version of the run ({error!r})"
        raise TrainingError(what=what, where=f"the checkpoints of {run.name}", fix="Delete them") from error
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(saved.tensors[name])
    resumed(saved.plain.get("time"))
    print(f"{run.name}: goes on from the checkpoint at step {saved.step} of {run.source.steps}")
    return saved.step, state, rows


def _numbers(value: Any) -> TypeGuard[dict[str, float]]:
    """Whether it is names with a number each."""
    return isinstance(value, dict) and all(type(one) in (int, float) for one in value.values())


def _check_fit(trained: dict[str, Tensor], start: State, saved: Saved) -> None:
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
