"""Objectives on padded tensors [B, T] with a mask, for training loops that do not pack rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.objective import (
    ROW_COLUMNS,
    AlgorithmRow,
    Objective,
    Prepared,
    State,
    step_metrics,
    with_gradient,
)
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.errors import ParamsError
from posttrain.formulas.ragged import Ragged, from_padded
from posttrain.settings.params import check, did_you_mean


def settings_of(rows: Mapping[str, AlgorithmRow], algorithm: str, settings: Mapping[str, Any] | None) -> Any:
    """Return the settings of an algorithm with some replaced."""
    row: AlgorithmRow = entry(rows, algorithm, "algorithm")
    return check(row.model, row.merged(settings or {}), where=algorithm, file="settings")


def entry(table: Mapping[str, Any], name: str, where: str) -> Any:
    """Return an entry of a table by its name."""
    if name not in table:
        raise ParamsError(what=f"'{name}' is unknown", where=where, fix=did_you_mean(name, sorted(table)))
    return table[name]


def check_arguments(algorithm: str, arguments: Mapping[str, tuple[Tensor | int | None, bool, bool]]) -> None:
    """Reject missing arguments, and arguments that would be ignored: name -> (value, is needed, is used)."""
    for name, (value, needed, used) in arguments.items():
        if value is None and needed:
            raise ParamsError(what=f"'{algorithm}' needs it", where=name, fix=f"Give {name}")
        if value is not None and not used:
            raise ParamsError(what=f"'{algorithm}' does not use it", where=name, fix="Leave it out, or change settings")


def padded_loss(
    objective: Objective,
    logp: Tensor,
    columns: Mapping[str, Tensor],
    mask: Tensor,
    state: MutableMapping[str, float] | None,
    pairs: int | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """Return the loss and metrics of one optimizer step. `logp` and the column `entropy` may have a gradient.

    `pairs`: the number of pairs in the rows, chosen rows first. `state` is updated in place.
    """
    lengths_B = mask.bool().sum(1)
    rows = {name: column.detach() for name, column in columns.items() if name in ROW_COLUMNS}
    tokens = {name: flat(name, column.detach(), mask) for name, column in columns.items() if name not in ROW_COLUMNS}
    rows["row"] = torch.arange(len(lengths_B), device=mask.device)
    with_grad = {"logp": flat("logp", logp, mask)}
    if "entropy" in columns:
        with_grad["entropy"] = flat("entropy", columns["entropy"], mask)
    tokens["token"] = torch.arange(len(with_grad["logp"]), device=mask.device)
    step = Ragged(lengths_B, rows, tokens, None if pairs is None else rows["row"] % pairs)
    prepared = _prepare(objective, step, {**objective.initial_state(), **(state or {})})
    loss = objective.loss(with_gradient(prepared.step, with_grad), prepared.state)
    if state is not None:
        state.update(prepared.state)
    return loss.total, {**prepared.metrics, **step_metrics(loss.metrics)}


def _prepare(objective: Objective, step: Ragged, state: State) -> Prepared:
    if isinstance(objective, PolicyObjective):
        return objective.prepare_given(step, state)
    return objective.prepare(step, state)


def flat(name: str, column: Tensor, mask: Tensor) -> Tensor:
    """Return the column's values [N] at the tokens of the mask; numbers in float32 or higher precision."""
    if column.shape != mask.shape:
        what = f"its shape is {tuple(column.shape)}, but the mask's shape is {tuple(mask.shape)}"
        raise ParamsError(what=what, where=name, fix="Give both as [B, T]")
    wide = torch.promote_types(column.dtype, torch.float32) if column.is_floating_point() else column.dtype
    return from_padded(column.to(wide), mask)[0]


def padded(column_N: Tensor, mask: Tensor) -> Tensor:
    """Return values [N] of the tokens of the mask as [B, T], 0 elsewhere."""
    return column_N.new_zeros(mask.shape).masked_scatter(mask.bool(), column_N)


@dataclass(frozen=True)
class PaddedBatch:
    """The input of another trainer's loss: a padded micro-batch, and the trainer's numbers for the whole step.

    All columns are [B, T]. Outside `mask` they may contain any number.
    """

    mask: Tensor
    """True at the trained tokens. Padding is on either side."""
    logp: Tensor
    """Log-probs under the trained policy, with gradient."""
    value: Tensor
    """Values of the critic, with gradient."""
    old_logp: Tensor
    """Log-probs under the policy at the start of the step, computed by the trainer."""
    sampler_logp: Tensor
    """Log-probs under the sampling policy, recorded by the engine."""
    ref_logp: Tensor
    teacher_logp: Tensor
    advantage: Tensor
    old_value: Tensor
    returns: Tensor
    step_tokens: int
    """Trained tokens of the whole optimizer step, over all micro-batches and processes."""
    step_rows: int
    micro_batches: int
    """Micro-batches of one process in the step. The trainer adds up their gradients."""
    ranks: int
    """The number of processes. The trainer averages gradients over them, like DDP and FSDP."""
    longest: int
    """The longest completion that a run allows."""


@dataclass(frozen=True)
class PaddedLoss:
    """A loss for another trainer, to be tested by `posttrain laws`: the value that it calls `backward` on.

    Example: `mine = PaddedLoss(lambda b: -(b.logp * b.advantage * b.mask).sum() / b.step_tokens * b.ranks)`
    """

    loss: Callable[[PaddedBatch], Tensor]
