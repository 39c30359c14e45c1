"""Every objective as a plain function on tensors, for a training loop of your own.

    result = policy_loss("grpo", logp=logp, old_logp=old_logp, ref_logp=ref, mask=mask, rewards=rewards, group_size=8)
    result.loss.backward()

Tensors are padded ([B, T] with a `mask` of the completion's tokens, padding anywhere) or ragged (flat [N] with
`lengths` [B]). A call is one optimizer step: whatever a row compares (groups, batch means, denominators) is taken over
the tensors given. To cut a step into micro-batches, use the objectives themselves: `prepare` once, `loss` per part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.algorithms.objective import GRADIENT_COLUMNS, ROW_COLUMNS, TOKEN_COLUMNS, AlgorithmRow, Objective, State
from posttrain.algorithms.policy import PolicyObjective
from posttrain.algorithms.policy_rows import POLICY_ROWS
from posttrain.algorithms.preference import PreferenceObjective
from posttrain.algorithms.preference_rows import PREFERENCE_ROWS
from posttrain.algorithms.reward import RewardKnobs, RewardObjective
from posttrain.errors import ParamsError
from posttrain.formulas.ragged import Ragged
from posttrain.params import did_you_mean


@dataclass(frozen=True)
class Result:
    """A step's loss with its graph, its gradient by the main column, what was measured, and the state to hand on."""

    loss: Tensor
    gradient: Tensor
    metrics: dict[str, float]
    state: State


def policy_loss(
    algorithm: str,
    *,
    logp: Tensor,
    rewards: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    old_logp: Tensor | None = None,
    ref_logp: Tensor | None = None,
    group_size: int | None = None,
    groups: Tensor | None = None,
    truncated: Tensor | None = None,
    max_length: int | None = None,
    reward_weights: Sequence[float] = (),
    columns: Mapping[str, Tensor] | None = None,
    settings: Mapping[str, Any] | None = None,
    state: State | None = None,
) -> Result:
    """The loss of a policy row, its gradient by `logp`, its metrics and its next state.

    `old_logp` defaults to `logp` itself (samples of the very policy); rows of a group are neighbours (`group_size`) or
    share a number (`groups`). `columns` holds what else the row needs (value, old_value, entropy, reward_parts with
    their `reward_weights`, ...: see objective.py); `step_start_logp` defaults to `logp`, `sample_key` to the
    row's number. `settings` replaces settings of the row. `overlong` and `resample` act on samples: apply them before
    the call.
    """
    rewards = rewards.detach()
    extra = dict(columns or {})
    extra |= {"reward": rewards, "old_logp": (logp if old_logp is None else old_logp).detach()}
    extra["truncated"] = torch.zeros_like(rewards, dtype=torch.bool) if truncated is None else truncated
    extra.setdefault("entropy", torch.zeros_like(logp))
    extra.setdefault("step_start_logp", logp.detach())
    extra.setdefault("sample_key", torch.arange(rewards.shape[0], device=rewards.device))
    if ref_logp is not None:
        extra["ref_logp"] = ref_logp
    grouped = _groups(rewards, group_size, groups)
    if grouped is not None:
        extra["group"] = grouped
    knobs = _row(POLICY_ROWS, algorithm).settings(**(settings or {}))
    if knobs.aggregation == "fixed_length" and max_length is None:
        raise _missing(algorithm, "max_length", "the constant that sums are divided by")
    return objective_loss(
        PolicyObjective(knobs, max_length or 1, tuple(reward_weights)),
        {"logp": logp, **extra},
        mask=mask,
        lengths=lengths,
        state=state,
    )


def preference_loss(
    algorithm: str,
    *,
    logp: Tensor,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    side: Tensor | None = None,
    label: Tensor | None = None,
    ref_logp: Tensor | None = None,
    settings: Mapping[str, Any] | None = None,
    state: State | None = None,
) -> Result:
    """The loss of a preference row, its gradient by `logp`, its metrics and its next state.

    Pairs: `side` is +1 for chosen and -1 for rejected rows; the n-th chosen row belongs to the n-th rejected one.
    Unpaired rows (kto, bco): `label` is +1 desirable, -1 undesirable, 0 a mismatched answer.
    """
    objective = PreferenceObjective(_row(PREFERENCE_ROWS, algorithm).settings(**(settings or {})))
    columns = {"logp": logp, "step_start_logp": logp.detach()}
    columns |= {} if ref_logp is None else {"ref_logp": ref_logp}
    columns |= {} if label is None else {"label": label}
    if side is None:
        return objective_loss(objective, columns, mask=mask, lengths=lengths, state=state)
    columns["side"] = side
    return objective_loss(objective, columns, mask=mask, lengths=lengths, item=_nth(side), state=state)


def reward_loss(
    score: Tensor,
    *,
    side: Tensor | None = None,
    rank: Tensor | None = None,
    item: Tensor | None = None,
    margin: Tensor | None = None,
    knobs: RewardKnobs | None = None,
) -> Result:
    """The Bradley-Terry loss of scores [B], of pairs (`side`) or of ranked answers (`rank` and the prompt's `item`)."""
    columns = {"score": score}
    columns |= {} if side is None else {"side": side}
    columns |= {} if rank is None else {"rank": rank}
    columns |= {} if margin is None else {"margin": margin}
    objective = RewardObjective(knobs or RewardKnobs.model_validate({"compare": "pairs" if rank is None else "ranks"}))
    item = _nth(side) if item is None and side is not None else item
    lengths = torch.zeros(score.shape[0], dtype=torch.long, device=score.device)
    return objective_loss(objective, columns, lengths=lengths, item=item, main="score")


def objective_loss(
    objective: Objective,
    columns: Mapping[str, Tensor],
    *,
    mask: Tensor | None = None,
    lengths: Tensor | None = None,
    item: Tensor | None = None,
    state: State | None = None,
    main: str = "logp",
) -> Result:
    """Any objective on columns named as in objective.py; the gradient is by the column `main`, in its shape."""
    unknown = sorted(set(columns) - ROW_COLUMNS - TOKEN_COLUMNS)
    if unknown:
        fix = did_you_mean(unknown[0], sorted(ROW_COLUMNS | TOKEN_COLUMNS))
        raise ParamsError(what=f"no objective knows a column '{unknown[0]}'", where="columns", fix=fix)
    leaf = columns[main] if columns[main].requires_grad else columns[main].detach().requires_grad_()
    with torch.enable_grad():
        step, made = _ragged({**columns, main: leaf}, mask, lengths, item)
        prepared = objective.prepare(step, objective.initial_state() if state is None else state)
        loss = objective.loss(with_gradient(prepared.step, made))
        (gradient,) = torch.autograd.grad(loss.total, [leaf], retain_graph=True, materialize_grads=True)
    metrics = dict(prepared.metrics) | {name: float(value.detach()) for name, value in loss.metrics.items()}
    return Result(loss.total, gradient, metrics, prepared.state)


def _ragged(
    columns: Mapping[str, Tensor], mask: Tensor | None, lengths: Tensor | None, item: Tensor | None
) -> tuple[Ragged, dict[str, Tensor]]:
    """(the step without gradient columns but with its own row and token numbers, the gradient columns)."""
    if (mask is None) == (lengths is None):
        raise ParamsError(what="tokens are padded or ragged", where="mask, lengths", fix="Give exactly one of the two")
    flat = dict(columns)
    if mask is not None:
        wrong = [name for name in flat if name in TOKEN_COLUMNS and flat[name].shape != mask.shape]
        if wrong:
            what = f"'{wrong[0]}' has shape {tuple(flat[wrong[0]].shape)}, the mask {tuple(mask.shape)}"
            raise ParamsError(what=what, where="mask", fix="Token columns and mask need one shape [B, T]")
        flat = {name: column[mask.bool()] if name in TOKEN_COLUMNS else column for name, column in flat.items()}
        lengths = mask.bool().sum(dim=1)
    assert lengths is not None
    made = {name: column for name, column in flat.items() if name in GRADIENT_COLUMNS}
    fixed = {name: column.detach() for name, column in flat.items() if name not in GRADIENT_COLUMNS}
    rows = {name: column for name, column in fixed.items() if name in ROW_COLUMNS}
    tokens = {name: column for name, column in fixed.items() if name in TOKEN_COLUMNS}
    rows["row"] = torch.arange(lengths.numel(), device=lengths.device)
    tokens["token"] = torch.arange(int(lengths.sum()), device=lengths.device)
    return Ragged(lengths, rows, tokens, item), made


def with_gradient(step: Ragged, made: Mapping[str, Tensor]) -> Ragged:
    """The gradient columns of the rows that `prepare` kept."""
    row, token = step.rows["row"], step.tokens["token"]
    step = step.with_rows(**{name: column[row] for name, column in made.items() if name in ROW_COLUMNS})
    return step.with_tokens(**{name: column[token] for name, column in made.items() if name in TOKEN_COLUMNS})


def _groups(rewards: Tensor, group_size: int | None, groups: Tensor | None) -> Tensor | None:
    if group_size is None:
        return groups
    if groups is not None or group_size < 1 or rewards.shape[0] % group_size:
        what = f"{rewards.shape[0]} rows are no whole groups of {group_size}, or groups were given twice"
        raise ParamsError(what=what, where="group_size", fix="Give group_size for neighbours, or groups, not both")
    return torch.arange(rewards.shape[0], device=rewards.device) // group_size


def _nth(side: Tensor) -> Tensor:
    """The n-th chosen row and the n-th rejected row are item n."""
    chosen = side > 0
    return torch.where(chosen, chosen.cumsum(0), (~chosen).cumsum(0)) - 1


def _row(rows: Mapping[str, AlgorithmRow], name: str) -> AlgorithmRow:
    if name not in rows:
        raise ParamsError(what=f"no algorithm '{name}'", where="algorithm", fix=did_you_mean(name, sorted(rows)))
    return rows[name]


def _missing(algorithm: str, name: str, what: str) -> ParamsError:
    return ParamsError(what=f"'{algorithm}' needs {name}, {what}", where=name, fix=f"Give {name}")
