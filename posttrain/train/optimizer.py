"""The optimizer: its settings, its schedule, and the update of weights from gradients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Protocol

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from posttrain.algorithms.objective import step_metrics
from posttrain.models.master_weights import master_of, round_masters, take_gradients
from posttrain.models.sharding import as_divided, fill, full, is_divided, own_part
from posttrain.settings.params import Params
from posttrain.train.step import StepClosure


class OptimizerParams(Params):
    """The optimizer and its learning rate schedule."""

    lr: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="peak learning rate; null: default for the kind of run, the model's size and its adapter",
    )
    schedule: Literal["constant", "linear", "cosine", "warmup_stable_decay"] = Field(
        "cosine", description="learning rate schedule"
    )
    warmup: float = Field(0.05, ge=0, lt=1, description="fraction of the steps during which the learning rate rises")
    decay: float = Field(
        0.3, ge=0, le=1, description="warmup_stable_decay: fraction of the steps during which it falls"
    )
    betas: list[float] = Field([0.9, 0.95], min_length=2, max_length=2, description="AdamW's betas")
    weight_decay: float = Field(0.0, ge=0, description="weight decay, on matrices only")
    matrices: Literal["adamw", "muon"] = Field(
        "adamw",
        description="optimizer of the layers' matrices: AdamW, as for all other weights, or Muon, with the same "
        "learning rate",
    )
    average: float = Field(0.0, ge=0, lt=1, description="average the weights over this last fraction of the steps")
    clip: float = Field(1.0, gt=0, description="largest gradient norm")
    critic_lr: float | None = Field(None, gt=0, lt=1, description="the critic's peak learning rate; null: the same")
    critic_first: float = Field(
        0.0, ge=0, lt=1, description="fraction of the steps, at the start, in which only the critic is trained"
    )

    @property
    def copies(self) -> int:
        """Maximum number of float32 numbers per weight: AdamW's moments, and the mean."""
        return 2 + bool(self.average)

    @field_validator("betas", mode="after")
    @classmethod
    def _averages(cls, betas: list[float]) -> list[float]:
        if not all(0 <= beta < 1 for beta in betas):
            raise ValueError(f"{betas} are decay rates of averages. Use numbers from 0 to below 1")
        return betas


class Update(Protocol):
    """Updates the weights with the gradient of a step."""

    def step(self, closure: StepClosure, progress: float) -> dict[str, float]: ...

    def state_dict(self) -> dict[str, Tensor]: ...

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None: ...


def lr_factor(params: OptimizerParams, progress: float, steps: int) -> float:
    """Return the learning rate as a fraction of its peak. `progress` is 0 at the first step and 1 after the last."""
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


NORM_EPSILON = 1e-6
"""The number that torch's clipping adds to the norm."""
MEAN = "mean."
"""The name prefix of averaged weights in checkpoints."""
MOMENTS = {"adamw": ("step", "exp_avg", "exp_avg_sq"), "muon": ("momentum_buffer",)}
"""The state that each rule keeps per weight."""


class WeightMean:
    """The mean of weights over the last steps of a run. After the last step, it replaces the weights."""

    def __init__(self, weights: Mapping[str, Tensor], share: float, steps: int) -> None:
        self._weights, self._first, self._last = weights, (1 - share) * steps, steps - 1
        self._mean: dict[str, Tensor] = {}
        self._count = 0

    @torch.no_grad()
    def add(self, step: int) -> None:
        """Add the weights after a step. After the last step, replace them by the mean."""
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
        """Restore the state from `state_dict`."""
        self._count = int(tensors.get(f"{MEAN}count", 0))
        self._mean = {name: torch.empty_like(weight) for name, weight in self._weights.items() if self._count}
        for name, mean in self._mean.items():
            fill(mean, tensors[f"{MEAN}{name}"])


class AdamW:
    """Clip the gradient's norm, then apply AdamW (Loshchilov 2019) to each module's parameters or their masters.

    With `matrices: muon`, torch.optim.Muon (Jordan 2024) updates the matrices of the layers.
    """

    def __init__(self, modules: Mapping[str, tuple[nn.Module, float]], params: OptimizerParams, steps: int) -> None:
        """`modules`: name in checkpoints -> trained module and its peak learning rate."""
        self._params, self._steps = params, steps
        groups: dict[str, list[dict[str, Any]]] = {"adamw": [], "muon": []}
        self._names: dict[str, list[str]] = {"adamw": [], "muon": []}
        self._parameters: dict[str, Tensor] = {}
        self._weights: list[nn.Parameter] = []
        self._peak = next((peak for _, peak in modules.values()), 0.0)
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
            made = torch.optim.AdamW(groups["adamw"], lr=self._peak, betas=(beta1, beta2), fused=True)
            self._optimizers["adamw"] = made
        if groups["muon"]:
            self._optimizers["muon"] = torch.optim.Muon(groups["muon"], lr=self._peak, adjust_lr_fn="match_rms_adamw")
        self._mean = WeightMean(self._parameters, params.average, steps)

    def step(self, closure: StepClosure, progress: float) -> dict[str, float]:
        """Take a step at the scheduled learning rate.

        Return the metrics with the gradient's norm, read in one transfer.
        """
        factor = lr_factor(self._params, progress, self._steps)
        for optimizer in self._optimizers.values():
            for group in optimizer.param_groups:
                waits = group["model"] != "critic" and progress < self._params.critic_first
                group["lr"] = 0.0 if waits else group["peak"] * factor
        totals = closure.totals()
        take_gradients(self._weights)
        norm = self._clip()
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
        metrics["lr"] = 0.0 if progress < self._params.critic_first else self._peak * factor
        return metrics

    def _clip(self) -> Tensor:
        """Clip the gradient. Return its norm before.

        On CUDA, AdamW's kernel divides each gradient by what the norm exceeds, so no pass over all gradients is needed.
        """
        weights = list(self._parameters.values())
        alone = self._optimizers.keys() == {"adamw"} and all(one.is_cuda and not is_divided(one) for one in weights)
        if not alone:
            return full(nn.utils.clip_grad_norm_(weights, self._params.clip))
        norm = nn.utils.get_total_norm([one.grad for one in weights if one.grad is not None])
        excess = (norm + NORM_EPSILON) / self._params.clip
        self._optimizers["adamw"].grad_scale = excess.clamp(min=1).float()  # type: ignore[attr-defined]
        return norm

    def state_dict(self) -> dict[str, Tensor]:
        """Return moments and step counts by parameter name, and the mean of the weights."""
        moments: dict[str, Tensor] = {}
        for rule, optimizer in self._optimizers.items():
            state, names = optimizer.state_dict()["state"], self._names[rule]
            moments |= {f"{names[i]}.{kind}": part for i, parts in state.items() for kind, part in parts.items()}
        return moments | self._mean.state_dict()

    def load_state_dict(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the state from `state_dict`."""
        known = {f"{name}.{kind}" for rule, names in self._names.items() for name in names for kind in MOMENTS[rule]}
        if unknown := [key for key in tensors if key not in known and not key.startswith(MEAN)]:
            raise ValueError(f"{unknown[0]} belongs to no trained weight")
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
    """Return the matrices of a model's layers, without embeddings, output head and scalar head."""
    ends = [module.get_input_embeddings(), module.get_output_embeddings(), getattr(module, "score", None)]
    outer = {part for end in ends if end is not None for part in end.parameters()}
    return {part for part in module.parameters() if part.requires_grad and part.dim() == 2 and part not in outer}
