"""One optimizer step: its batch, the gradient of its loss, and the update by AdamW."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Literal, Protocol

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from posttrain.algorithms.objective import Loss, Objective, State, add_metrics, step_metrics
from posttrain.formulas.ragged import Ragged
from posttrain.measure.counts import count
from posttrain.models.device import repeatable
from posttrain.models.forward.forward import add_embedding_gradient, embedded_leaf, packed_states
from posttrain.models.forward.logp import head_of, loss_tiles
from posttrain.models.forward.routers import Recording
from posttrain.models.master_weights import gradient_of, master_of, round_masters, take_gradients
from posttrain.models.sharding import as_divided, full, own_part
from posttrain.params.params import Params
from posttrain.processes import world
from posttrain.processes.world import split_across_ranks
from posttrain.rollout import Kept, TokenRow
from posttrain.text.packing import PackedRows, kept_of
from posttrain.train.model_set import ModelSet, on_device
from posttrain.train.routing import NO_ROUTERS, Routers, StepRouting


@dataclass(frozen=True)
class Batch:
    """Rows of tokens and their columns; the column `row` numbers the rows."""

    rows: Sequence[TokenRow]
    columns: Ragged

    def __len__(self) -> int:
        return len(self.rows)

    def select(self, rows: Sequence[int]) -> Batch:
        """Return some rows, in this order, renumbered."""
        columns = self.columns.select(torch.tensor(rows, dtype=torch.long))
        columns = columns.with_rows(row=torch.arange(len(rows)))
        return Batch([self.rows[i] for i in rows], columns)

    def with_prepared(self, step: Ragged) -> Batch:
        """Return the rows that `prepare` kept, in its order, with the columns that it added."""
        rows = step.rows["row"].tolist()
        return Batch([self.rows[i] for i in rows], step.with_rows(row=torch.arange(len(rows))))

    def with_columns(self, columns: Ragged) -> Batch:
        """Return the same rows with other columns."""
        return replace(self, columns=columns)

    def tensors(self) -> dict[str, Tensor]:
        """Return the whole batch as named tensors, for a checkpoint."""
        columns = self.columns
        saved = {"lengths": columns.lengths_B, "items": columns.items}
        saved |= {f"row.{name}": part for name, part in columns.rows.items()}
        saved |= {f"token.{name}": part for name, part in columns.tokens.items()}
        for name in ("prompt", "rest"):
            side = [getattr(row, name) for row in self.rows]
            saved[f"{name}.ids"] = torch.tensor([i for ids in side for i in ids], dtype=torch.long)
            saved[f"{name}.lengths"] = torch.tensor([len(ids) for ids in side], dtype=torch.long)
        saved["masked"] = torch.tensor([row.mask is not None for row in self.rows])
        saved["mask"] = torch.tensor([flag for row in self.rows for flag in row.mask or ()], dtype=torch.bool)
        if kept := kept_of(self.rows):
            saved |= {"kept.ids": kept.ids, "kept.counts": kept.counts}
        return saved

    @staticmethod
    def from_tensors(saved: dict[str, Tensor]) -> Batch:
        """Return the batch that `tensors` returned."""
        prompts, rests = (
            [part.tolist() for part in torch.split(saved[f"{name}.ids"], saved[f"{name}.lengths"].tolist())]
            for name in ("prompt", "rest")
        )
        masked, mask = saved["masked"], saved["mask"]
        sizes = (saved["rest.lengths"] * masked).tolist()
        parts = zip(torch.split(mask, sizes), masked.tolist(), strict=True)
        masks = [part.tolist() if has else None for part, has in parts]
        columns = Ragged(
            lengths_B=saved["lengths"],
            rows={name[4:]: part for name, part in saved.items() if name.startswith("row.")},
            tokens={name[6:]: part for name, part in saved.items() if name.startswith("token.")},
            item_B=saved["items"],
        )
        ends = [0, *saved["lengths"].cumsum(0).tolist()]
        kept = Kept(saved["kept.ids"], saved["kept.counts"]) if "kept.ids" in saved else None
        sets = [kept and kept.part(slice(*bounds)) for bounds in pairwise(ends)]
        return Batch([TokenRow(*fields) for fields in zip(prompts, rests, masks, sets, strict=True)], columns)


def make_batch(
    rows: Sequence[TokenRow],
    row_columns: dict[str, Tensor] | None = None,
    token_columns: dict[str, Tensor] | None = None,
    items: Tensor | None = None,
) -> Batch:
    """Return a batch of rows with these columns."""
    lengths = torch.tensor([len(row.trained) for row in rows], dtype=torch.long)
    numbered = {**(row_columns or {}), "row": torch.arange(len(rows))}
    return Batch(rows, Ragged(lengths, numbered, token_columns or {}, items))


def concatenate(parts: Sequence[Batch]) -> Batch:
    """Batches of the same columns as one; the rows of an item must be in the same part."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0].columns
    return make_batch(
        [row for part in parts for row in part.rows],
        {name: torch.cat([part.columns.rows[name] for part in parts]) for name in first.rows if name != "row"},
        {name: torch.cat([part.columns.tokens[name] for part in parts]) for name in first.tokens},
    )


@dataclass(frozen=True)
class StepClosure:
    """The loss of a prepared optimizer step; a call adds its gradient to the `.grad` of the trained weights."""

    objective: Objective
    models: ModelSet
    batch: Batch
    routers: Routers = NO_ROUTERS
    state: State = field(default_factory=dict)
    """What the objective's `prepare` returned with the batch."""

    def __call__(self) -> dict[str, float]:
        """Accumulate the gradients and metrics of all micro-batches; one transfer from the device at the end."""
        return step_metrics(self.totals())

    def totals(self) -> dict[str, Tensor]:
        """Return the same without the transfer: the device is still at work."""
        totals: dict[str, Tensor] = {}
        routing = StepRouting(self.routers, self.tokens)
        if self.routers.balance:
            routing.look_ahead([self.models.packed(micro) for micro in self.models.micro_batches(self.batch)])
        for micro, counts in split_across_ranks([*self.models.micro_batches(self.batch)]):
            found = self._backward(micro, routing, counts=counts)
            if counts:
                add_metrics(totals, found)
        if not self.models.sharded:
            self._add_gradients()
        count({"train_tokens": self.tokens})
        return _of_all(totals, routing.metrics())

    def _add_gradients(self) -> None:
        """Sum the gradients over the processes, each of which has whole models."""
        if world.count() == 1:
            return
        weights = (part for model in self.models.trained.values() for part in model.parameters())
        world.add_up([gradient_of(part) for part in weights if part.requires_grad])

    @property
    def tokens(self) -> int:
        """The tokens of the step's rows, prompts included."""
        return sum(len(row) for row in self.batch.rows)

    @torch.no_grad()
    def loss(self) -> float:
        """Return the loss at the current weights."""
        total, routing = 0.0, StepRouting(self.routers, self.tokens)
        for micro, counts in split_across_ranks([*self.models.micro_batches(self.batch)]):
            columns, recording = self._forward(micro, self.models.packed(micro))
            total += float(self.objective.loss(columns, self.state).total) * counts
            routing.add(recording, counts=counts)
        return float(sum(world.gathered(total))) + routing.loss()

    @torch.no_grad()
    def measured(self) -> dict[str, float]:
        """Return the loss and its metrics at the current weights, of one process."""
        totals: dict[str, Tensor] = {}
        for micro in self.models.micro_batches(self.batch):
            columns, _ = self._forward(micro, self.models.packed(micro))
            add_metrics(totals, _detached(self.objective.loss(columns, self.state)))
        return step_metrics(totals)

    def micro_batches(self) -> list[Batch]:
        """Return this process's micro-batches."""
        return [micro for micro, counts in split_across_ranks([*self.models.micro_batches(self.batch)]) if counts]

    def _forward(self, micro: Batch, packed: PackedRows) -> tuple[Ragged, Recording]:
        """Return one micro-batch's forward pass, and what its routers decided."""
        with self.routers.record(packed) as recording:
            return self.models.forward(micro, self.objective.needs, packed), recording

    def _backward(self, micro: Batch, routing: StepRouting, *, counts: bool = True) -> dict[str, Tensor]:
        """Add one micro-batch's gradient, of zeros if it does not count; returns its loss and metrics."""
        packed = self.models.packed(micro)
        fused = self.models.runtime.fused and counts and not self.models.sharded
        if self.objective.by_token and fused and len(micro):
            return self._fused_backward(micro, packed, routing)
        columns, recording = self._forward(micro, packed)
        loss, balance = self.objective.loss(columns, self.state), routing.add(recording, counts=counts)
        total = loss.total if balance is None else loss.total + balance
        with repeatable():
            (total if counts else 0.0 * total).backward()  # type: ignore[no-untyped-call]
        return _detached(loss)

    def _fused_backward(self, micro: Batch, packed: PackedRows, routing: StepRouting) -> dict[str, Tensor]:
        """Return the same for a loss that is a sum over tokens, without autograd through the head.

        The loss is computed tile by tile while the head's distributions are in memory, so that they are computed once.
        """
        models = self.models
        columns = on_device(micro.columns, models.runtime.device)
        totals: dict[str, Tensor] = {}
        embedded_ND = embedded_leaf(models.policy, packed)
        with self.routers.record(packed) as recording:
            states_ND = packed_states(models.policy, packed, embedded_ND)
        hidden_MD = states_ND.detach().index_select(0, packed.source_M)
        grad_MD = torch.empty_like(hidden_MD)
        head = head_of(models.policy)
        for tile in loss_tiles(hidden_MD, head, packed.target_M, models.temperature, packed.kept):
            part = columns.tokens_in(tile.part).with_tokens(logp=tile.logp, entropy=tile.entropy)
            loss = self.objective.loss(part, self.state)
            grad_MD[tile.part] = tile.backward(loss.total)
            add_metrics(totals, _detached(loss))
        grad_ND = torch.zeros_like(states_ND).index_add_(0, packed.source_M, grad_MD)
        balance = routing.add(recording)
        outputs = {states_ND: grad_ND} if balance is None else {states_ND: grad_ND, balance: None}
        with repeatable():
            torch.autograd.backward([*outputs], [*outputs.values()])
        if embedded_ND is not None:
            add_embedding_gradient(models.policy, packed, embedded_ND)
        return totals


def _of_all(totals: Mapping[str, Tensor], routing: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the metrics of all processes as those of one, read at once; `routing`: those that are of all already."""
    every = {**totals, **routing}
    if world.count() == 1:
        return every
    numbers = torch.stack([part.detach().double() for part in every.values()]).tolist() if every else []
    mine = dict(zip(every, numbers, strict=True))
    found: dict[str, Tensor] = {}
    for part in world.gathered({name: mine[name] for name in totals}):
        add_metrics(found, {name: torch.tensor(value, dtype=torch.float64) for name, value in part.items()})
    return found | {name: torch.tensor(mine[name], dtype=torch.float64) for name in routing}


def _detached(loss: Loss) -> dict[str, Tensor]:
    return {"loss": loss.total.detach(), **{name: value.detach() for name, value in loss.metrics.items()}}


class OptimizerParams(Params):
    """The optimizer and its learning rate schedule."""

    lr: float = Field(1e-4, gt=0, lt=1, description="peak learning rate; with an adapter 1e-3 where it is not given")
    schedule: Literal["constant", "linear", "cosine", "warmup_stable_decay"] = Field(
        "cosine", description="schedule of the learning rate"
    )
    warmup: float = Field(0.05, ge=0, lt=1, description="fraction of the steps over which the learning rate rises")
    decay: float = Field(0.3, ge=0, le=1, description="warmup_stable_decay: fraction of the steps over which it falls")
    betas: list[float] = Field([0.9, 0.95], min_length=2, max_length=2, description="AdamW's betas")
    weight_decay: float = Field(0.0, ge=0, description="on matrices only")
    matrices: Literal["adamw", "muon"] = Field(
        "adamw", description="what updates the layers' matrices: AdamW as all else, or Muon, at the same learning rate"
    )
    average: float = Field(
        0.0, ge=0, lt=1, description="the run ends with the mean of its weights over this last fraction of the steps"
    )
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    critic_lr: float | None = Field(None, gt=0, lt=1, description="the critic's peak rate; null for the same")
    critic_first: float = Field(
        0.0, ge=0, lt=1, description="fraction of the steps, the first ones, in which only the critic learns"
    )

    @property
    def copies(self) -> int:
        """The most float32 numbers that are kept of a weight: AdamW's moments, and the mean."""
        return 2 + bool(self.average)

    @field_validator("betas", mode="after")
    @classmethod
    def _averages(cls, betas: list[float]) -> list[float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{betas} are shares of the past that an average keeps. Use numbers from 0 to below 1")
        return betas


class Update(Protocol):
    """Turns the gradient of a step into new weights."""

    def step(self, closure: StepClosure, progress: float) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None: ...


def lr_factor(params: OptimizerParams, progress: float, steps: int) -> float:
    """Return the learning rate at `progress` (0 at the first step, 1 after the last) as a fraction of its peak."""
    warmup = max(params.warmup, 1.0 / max(steps, 1)) if params.warmup else 0.0
    if progress + 1.0 / max(steps, 1) <= warmup:
        return (progress + 1.0 / max(steps, 1)) / warmup
    rest = (progress - warmup) / max(1 - warmup, 1e-9)
    match params.schedule:
        case "linear":
            return 1 - rest
        case "cosine":
            return 0.5 * (1 + math.cos(math.pi * rest))
        case "warmup_stable_decay":
            return min(1.0, (1 - progress) / params.decay) if params.decay else 1.0
        case _:
            return 1.0


MEAN = "mean."
"""Begins the names of a mean's weights in checkpoints."""
MOMENTS = {"adamw": ("step", "exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}
"""What each rule keeps of a weight."""


class WeightMean:
    """The mean of weights over the last steps of a run, which they become after its last step."""

    def __init__(self, weights: Mapping[str, Tensor], share: float, steps: int) -> None:
        self._weights, self._first, self._last = weights, (1 - share) * steps, steps - 1
        self._mean: dict[str, Tensor] = {}
        self._count = 0

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Add the weights after a step; after the last one the mean takes their place."""
        if step < self._first:
            return
        self._count += 1
        for name, weight in self._weights.items():
            if name in self._mean:
                self._mean[name].add_((weight - self._mean[name]) / self._count)
            else:
                self._mean[name] = weight.clone()
            if step == self._last:
                weight.copy_(self._mean[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Return the mean so far and the number of steps in it."""
        mean = {f"{MEAN}{name}": part for name, part in self._mean.items()}
        return {**mean, f"{MEAN}count": torch.tensor(self._count)} if mean else {}

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._count = int(tensors.get(f"{MEAN}count", 0))
        found = {name: tensors[f"{MEAN}{name}"] for name in self._weights if self._count}
        self._mean = {name: as_divided(part, self._weights[name]).clone() for name, part in found.items()}


class AdamW:
    """Clip the gradient's norm, then AdamW (Loshchilov 2019) on each module's parameters, or on their masters.

    With `matrices: muon` Muon (Jordan 2024) updates the matrices of the layers, by torch.optim.Muon.
    """

    def __init__(self, modules: Mapping[str, tuple[nn.Module, float]], params: OptimizerParams, steps: int) -> None:
        """`modules`: each trained module with its peak learning rate, by the name that its state has in checkpoints."""
        self._params, self._steps = params, steps
        groups: dict[str, list[dict[str, Any]]] = {"adamw": [], "muon": []}
        self._names: dict[str, list[str]] = {"adamw": [], "muon": []}
        self._parameters: dict[str, Tensor] = {}
        self._weights: list[nn.Parameter] = []
        for kind, (module, peak) in modules.items():
            trained = {f"{kind}.{name}": p for name, p in module.named_parameters() if p.requires_grad}
            self._weights += trained.values()
            inner = _layer_matrices(module) if params.matrices == "muon" else set()
            outer = {name: p for name, p in trained.items() if p not in inner}
            parts = (
                ("adamw", params.weight_decay, {name: p for name, p in outer.items() if p.dim() > 1}),
                ("adamw", 0.0, {name: p for name, p in outer.items() if p.dim() <= 1}),
                ("muon", params.weight_decay, {name: p for name, p in trained.items() if p in inner}),
            )
            for rule, decay, weights in parts:
                masters = {name: master_of(p) for name, p in weights.items()}
                if masters:
                    group = {"params": [*masters.values()], "peak": peak, "weight_decay": decay, "model": kind}
                    groups[rule].append(group)
                    self._names[rule] += masters
                    self._parameters |= masters
        beta1, beta2 = params.betas
        self._optimizers: dict[str, torch.optim.Optimizer] = {}
        if groups["adamw"]:
            made = torch.optim.AdamW(groups["adamw"], lr=params.lr, betas=(beta1, beta2), fused=True)
            self._optimizers["adamw"] = made
        if groups["muon"]:
            self._optimizers["muon"] = torch.optim.Muon(groups["muon"], lr=params.lr, adjust_lr_fn="match_rms_adamw")
        self._mean = WeightMean(self._parameters, params.average, steps)

    def step(self, closure: StepClosure, progress: float) -> dict[str, float]:
        """Return one step at the scheduled learning rate; the metrics and the gradient's norm are read at once."""
        factor = lr_factor(self._params, progress, self._steps)
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                waits = group["model"] != "critic" and progress < self._params.critic_first
                group["lr"] = 0.0 if waits else group["peak"] * factor
        totals = closure.totals()
        take_gradients(self._weights)
        norm = full(nn.utils.clip_grad_norm_(self._parameters.values(), self._params.clip))
        norm = norm.to(next(iter(totals.values()), norm).device)  # of several processes the metrics have been read
        metrics = step_metrics({**totals, "grad_norm": norm})
        metrics["grad_norm"] = metrics.pop("grad_norm")
        finite = math.isfinite(metrics["grad_norm"])
        for optimizer in self._optimizers.values():
            if finite:
                optimizer.step()
        if self._params.average:
            self._mean.add(round(progress * self._steps))
        if finite or self._params.average:
            round_masters(self._weights)
        for optimizer in self._optimizers.values():
            optimizer.zero_grad(set_to_none=True)
        metrics["lr"] = self._params.lr * factor
        return metrics

    def state_dict(self) -> dict[str, Tensor]:
        """Moments and step counts of every parameter, by its name, and the mean of the weights."""
        moments: dict[str, Tensor] = {}
        for rule, optimizer in self._optimizers.items():
            state, names = optimizer.state_dict()["state"], self._names[rule]
            moments |= {f"{names[i]}.{kind}": part for i, parts in state.items() for kind, part in parts.items()}
        return moments | self._mean.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` returned."""
        self._mean.load_state_dict(tensors)
        for rule, optimizer in self._optimizers.items():
            state, names = optimizer.state_dict(), self._names[rule]
            places = {name: place for place, name in enumerate(names)}
            for key, part in tensors.items():
                name, _, kind = key.rpartition(".")
                if name not in places:
                    continue
                whole = as_divided(part, self._parameters[name]) if part.dim() or kind != "step" else part
                state["state"].setdefault(places[name], {})[kind] = whole
            for place, parts in state["state"].items():
                shape = self._parameters[names[place]].shape
                shapes = {kind: torch.Size() if kind == "step" else shape for kind in MOMENTS[rule]}
                finite = all(
                    part.is_floating_point() and bool(own_part(part).isfinite().all()) for part in parts.values()
                )
                if {kind: part.shape for kind, part in parts.items()} != shapes or not finite:
                    raise ValueError(f"the moments of {names[place]} are incomplete")
            optimizer.load_state_dict(state)


def _layer_matrices(module: Any) -> set[nn.Parameter]:
    """Return the matrices of a model's layers: not those of tokens, in or out, nor of scores."""
    ends = [module.get_input_embeddings(), module.get_output_embeddings(), getattr(module, "score", None)]
    outer = {part for end in ends if end is not None for part in end.parameters()}
    return {part for part in module.parameters() if part.requires_grad and part.dim() == 2 and part not in outer}
