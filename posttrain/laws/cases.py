"""Random optimizer steps for any objective, with exactly the columns that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from posttrain.algorithms.objective import (
    GRADIENT_COLUMNS,
    REWARD_PARTS,
    Objective,
    State,
    add_metrics,
    part_columns,
    step_metrics,
    with_gradient,
)
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.formulas.ragged import Ragged
from posttrain.settings.choices import Options

OFF = Options(type="none")
LONGEST = 9
"""A length above all drawn lengths: the constant of the fixed-length aggregation."""


@dataclass(frozen=True)
class Shape:
    """The seed and size of a case. The rest follows from the objective's needs."""

    seed: int
    groups: int = 3
    size: int = 3
    longest: int = 6
    binary: bool = False


@dataclass(frozen=True)
class Case:
    """A step and, separately, its gradient columns, so that a law can change either."""

    objective: Objective
    step: Ragged
    leaves: dict[str, Tensor]
    state: State

    def cast(self, dtype: torch.dtype) -> Case:
        """Return the same numbers in another precision."""

        def to(columns: dict[str, Tensor]) -> dict[str, Tensor]:
            return {name: part.to(dtype) if part.is_floating_point() else part for name, part in columns.items()}

        step = replace(self.step, rows=to(dict(self.step.rows)), tokens=to(dict(self.step.tokens)))
        return replace(self, step=step, leaves=to(self.leaves))


@dataclass(frozen=True)
class Outcome:
    """The loss, gradients, metrics and next state of a step, with their inputs."""

    loss: Tensor
    gradients: dict[str, Tensor]
    metrics: dict[str, float]
    state: State
    case: Case
    prepared: Ragged


def build(objective: Objective, shape: Shape) -> Case:
    """Return a step of float64 columns for the objective, drawn from the shape's seed."""
    draw = torch.Generator().manual_seed(shape.seed)
    rows, item_B = _rows(objective, shape, draw)
    lengths_B = torch.randint(1, shape.longest + 1, (item_B.numel(),), generator=draw)
    tokens = _tokens(int(lengths_B.sum()), draw)
    leaves = {
        "logp": tokens["logp"],
        "entropy": torch.rand(len(tokens["logp"]), generator=draw, dtype=torch.float64),
        "value": tokens["value"],
        "kl_old": tokens["logp"].abs() / 10,
        "teacher_kl": tokens["logp"].abs(),
        "score": torch.randn(len(lengths_B), generator=draw, dtype=torch.float64),
    }
    wanted = objective.needs | {"logp"} | ({"old_value"} if "value" in objective.needs else set())
    fixed = {name: part for name, part in tokens.items() if name in wanted - GRADIENT_COLUMNS}
    fixed["token"] = torch.arange(int(lengths_B.sum()))
    rows["row"] = torch.arange(len(lengths_B))
    used = {name: part for name, part in leaves.items() if name in wanted}
    return Case(objective, Ragged(lengths_B, rows, fixed, item_B), used, objective.initial_state())


Cut = Callable[[Ragged], list[Ragged]]


def run(case: Case, cut: Cut | None = None, cut_again: Cut | None = None) -> Outcome:
    """Prepare the step, add up the losses of its parts, and take the gradient with respect to every gradient column.

    `cut` divides the prepared rows into parts. `cut_again` divides each part with its gradient columns.
    """
    leaves = {name: leaf.detach().clone().requires_grad_() for name, leaf in case.leaves.items()}
    prepared = case.objective.prepare(case.step, dict(case.state))
    parts = [with_gradient(part, leaves) for part in ([prepared.step] if cut is None else cut(prepared.step))]
    parts = parts if cut_again is None else [piece for part in parts for piece in cut_again(part)]
    losses = [case.objective.loss(part, prepared.state) for part in parts]
    total = torch.stack([loss.total for loss in losses]).sum()
    gradients = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True, allow_unused=True)
    totals: dict[str, Tensor] = {}
    for loss in losses:
        add_metrics(totals, loss.metrics)
    metrics = {**prepared.metrics, **step_metrics(totals)}
    by_leaf = dict(zip(leaves, gradients, strict=True))
    return Outcome(total.detach(), by_leaf, metrics, prepared.state, case, prepared.step)


def without_extra_terms(objective: PolicyObjective, **over: Options) -> PolicyObjective:
    """Return the objective reduced to its surrogate and critic."""
    config = objective.config
    if objective.surrogate.charge is not None:
        over["surrogate"] = config.surrogate.model_copy(update={objective.surrogate.charge: 0.0})
    return replace(objective, config=config.model_copy(update={"kl": OFF, "entropy": 0.0, "ptx": 0.0, **over}))


def _tokens(count: int, draw: torch.Generator) -> dict[str, Tensor]:
    def normal(scale: float) -> Tensor:
        return torch.randn(count, generator=draw, dtype=torch.float64) * scale

    logp = -torch.rand(count, generator=draw, dtype=torch.float64) * 3 - 0.05
    old = (logp + normal(0.3)).clamp(max=-1e-3)
    value = normal(1.0)
    return {
        "logp": logp,
        "old_logp": old,
        "recomputed_logp": (old + normal(0.2)).clamp(max=-1e-3),
        "ref_logp": (logp + normal(0.5)).clamp(max=-1e-3),
        "step_start_logp": (logp + normal(0.1)).clamp(max=-1e-3),
        "step_start_entropy": 3 * (7 * logp).sin().abs(),
        "value": value,
        "old_value": value + normal(0.3),
    }


def _rows(objective: Objective, shape: Shape, draw: torch.Generator) -> tuple[dict[str, Tensor], Tensor]:
    """Return (row columns, item numbers) of pairs, ranked answers, labels or groups, as needed."""
    needs = objective.needs
    if "side" in needs:
        pairs = shape.groups * shape.size
        item_B = torch.arange(pairs).repeat_interleave(2)
        first = torch.randint(0, 2, (pairs,), generator=draw) * 2.0 - 1
        margin = torch.rand(2 * pairs, generator=draw, dtype=torch.float64)
        rows = {"side": torch.stack([first, -first], dim=1).flatten(), "margin": margin}
        return {name: part for name, part in rows.items() if name in needs}, item_B
    count = shape.groups * shape.size
    group_B = torch.arange(shape.groups).repeat_interleave(shape.size)
    if "rank" in needs:
        rank_B = torch.randint(0, 3, (count,), generator=draw)
        rank_B[:2] = torch.tensor([0, 1])
        return {"rank": rank_B}, group_B
    reward = torch.randn(count, generator=draw, dtype=torch.float64)
    rows = {
        "reward": (reward > 0).double() if shape.binary else reward,
        "group": group_B,
        "opponent": torch.arange(shape.size).repeat(shape.groups) % 2 == 1,
        "truncated": torch.rand(count, generator=draw) < 0.3,
        "age": torch.randint(0, 3, (count,), generator=draw),
        "fresh": torch.arange(count) % 3 < 2,
        "label": torch.tensor([1.0, -1.0, 0.0]).repeat(count)[:count],
    }
    if isinstance(objective, PolicyObjective):
        if objective.advantage.nonnegative:
            rows["reward"] = rows["reward"].abs()
        parts_BK = torch.randn(count, 2, generator=draw, dtype=torch.float64)
        rows |= part_columns({"first": (parts_BK[:, 0], 1.0), "second": (parts_BK[:, 1], 0.5)})
        rows["sample_key"] = torch.randint(-(2**62), 2**62, (count,), generator=draw)
    rows["truncated"][0] = False
    if "pretrain" in needs:
        extra = {name: torch.cat([part, part[:2]]) for name, part in rows.items()}
        extra["group"][-2:] = shape.groups
        extra["pretrain"] = torch.arange(count + 2) >= count
        rows, count = extra, count + 2
    order = torch.randperm(count, generator=draw)
    parts = tuple(f"{kind}." for kind in ("part", "weight") if REWARD_PARTS in needs)
    needed = (name for name in rows if name in needs or name.startswith(parts))
    return {name: rows[name][order] for name in needed}, torch.arange(count)
