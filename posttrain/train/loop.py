"""The training loop: the same for every algorithm, which it knows only by its objective."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from posttrain.algorithms.objective import Objective, State
from posttrain.errors import TrainingError
from posttrain.progress import Progress
from posttrain.train.batch import Batch, Source
from posttrain.train.checkpoint import Checkpoints, Saved
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
    saved = run.checkpoints.latest()
    state = run.objective.initial_state() if saved is None else _restore(run, saved)
    first = 0 if saved is None else saved.step
    log = MetricsLog(run.log_path, None if saved is None else saved.plain["rows"])
    progress = Progress(run.name, run.source.steps, done=first)
    for step in range(first, run.source.steps):
        batch = run.modules.fill(run.source.batch(step), run.objective.needs)
        prepared = run.objective.prepare(batch.columns, state)
        kept = rows_of(prepared.step)
        problem = _problem(run, batch.part(kept).with_columns(prepared.step))
        for module in run.modules.trained.values():
            module.train()
        metrics = run.update.step(problem, step / run.source.steps)
        state = prepared.state
        row = {"step": step, **metrics, **prepared.metrics, **run.source.seen()}
        _check_finite(run, row)
        log.add(row)
        progress.advance(1, {name: row[name] for name in run.watch if name in row})
        if (step + 1) % run.checkpoint_every == 0 or step + 1 == run.source.steps:
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
    tensors["random"] = torch.get_rng_state()
    return Saved(step, tensors, {"objective": state, "rows": log.rows})


def _restore(run: Run, saved: Saved) -> State:
    """Put every part of the run back where the checkpoint left it."""

    def under(prefix: str) -> dict[str, Tensor]:
        return {name[len(prefix) :]: part for name, part in saved.tensors.items() if name.startswith(prefix)}

    with torch.no_grad():
        for kind, module in run.modules.trained.items():
            parts = under(f"{kind}.")
            for name, parameter in module.named_parameters():
                parameter.copy_(parts[name])
    run.update.load(under("update."))
    run.source.load(under("source."))
    torch.set_rng_state(saved.tensors["random"])
    print(f"{run.name}: goes on from the checkpoint at step {saved.step} of {run.source.steps}")
    return dict(saved.plain["objective"])


def _check_finite(run: Run, row: dict[str, float]) -> None:
    bad = [name for name in ("loss", "grad_norm") if not math.isfinite(row.get(name, 0.0))]
    if bad:
        raise TrainingError(
            what=f"{' and '.join(bad)} not finite at step {row['step']}",
            where=run.name,
            mend="Lower the learning rate; the last checkpoint before it is kept",
        )
