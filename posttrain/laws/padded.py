"""The laws of losses of other trainers: any padding, order, micro-batches and processes give the same gradient.

The trainer adds the gradients of a process's micro-batches and averages them over processes. The parts of a step have
equal numbers of rows, as trainers cut them, and unequal numbers of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from posttrain.algorithms.padded import PaddedBatch, PaddedLoss
from posttrain.errors import ParamsError
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import LONGEST, Shape
from posttrain.laws.laws import LAWS, Check, Law, largest, relative, worst_of

ROWS = 12
"""Rows of a step: they divide into 2, 3, 4 and 6 equal parts."""
COLUMNS = [column.name for column in fields(PaddedBatch) if str(column.type) == "Tensor" and column.name != "mask"]
LEAVES = ("logp", "value", "advantage")
"""The columns that the loss is differentiated by; the trainer does so by the first two."""


@dataclass(frozen=True)
class Step:
    """The rows of a step, how they are cut into the micro-batches of each process, and the padding on either side."""

    rows: Ragged
    cut: Sequence[Sequence[Tensor]] = ((torch.arange(ROWS),),)
    left: int = 0
    right: int = 0
    seed: int = 0

    def with_columns(self, **columns: Tensor) -> Step:
        """Return the step with some columns replaced."""
        return replace(self, rows=self.rows.with_tokens(**columns))


@dataclass(frozen=True)
class Result:
    """The loss of a step, and its gradients by the columns that it reads."""

    loss: Tensor
    gradients: dict[str, Tensor]


def build(shape: Shape) -> Step:
    """Return a step of float64 columns, drawn from the shape's seed."""
    draw = torch.Generator().manual_seed(shape.seed)
    lengths_B = torch.randint(1, shape.longest + 1, (ROWS,), generator=draw)
    lengths_B[0], lengths_B[-1] = 1, shape.longest
    count = int(lengths_B.sum())

    def normal(scale: float) -> Tensor:
        return torch.randn(count, generator=draw, dtype=torch.float64) * scale

    logp = -torch.rand(count, generator=draw, dtype=torch.float64) * 3 - 0.05
    columns = {"logp": logp, "value": normal(1.0), "advantage": normal(1.0), "returns": normal(1.0)}
    columns |= {name: (logp + normal(0.3)).clamp(max=-1e-3) for name in COLUMNS if name.endswith("_logp")}
    columns["old_value"] = columns["value"] + normal(0.3)
    return Step(Ragged(lengths_B, tokens=columns), seed=shape.seed)


def run(subject: PaddedLoss, step: Step) -> Result:
    """Compute the loss of every micro-batch and take the gradients of the step as a trainer adds them up."""
    leaves = {name: step.rows.tokens[name].detach().clone().requires_grad_() for name in LEAVES}
    rows = step.rows.with_tokens(**leaves)
    losses = [
        _scalar(subject.loss(_padded(step, rows.select(index), len(parts))), rows) / len(step.cut)
        for parts in step.cut
        for index in parts
    ]
    total = torch.stack(losses).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    gradients = {
        name: part
        for name, part in zip(leaves, found, strict=True)
        if part is not None  # type: ignore[redundant-expr]
    }
    return Result(total.detach(), gradients)


def _scalar(loss: object, rows: Ragged) -> Tensor:
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        shown = f"a tensor of shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        what = f"it returns {shown}, without gradient or not a single number"
        raise ParamsError(what=what, where="PaddedLoss", fix="Return the number that the trainer calls backward on")
    return loss.reshape(()).to(rows.tokens["logp"].dtype)


def _padded(step: Step, rows: Ragged, micro_batches: int) -> PaddedBatch:
    draw = torch.Generator().manual_seed(step.seed + 1)
    width = int(step.rows.lengths_B.max())
    moved = width - rows.lengths_B if step.left or step.right else torch.zeros_like(rows.lengths_B)
    starts_B = step.left + moved * torch.randint(0, 2, rows.lengths_B.shape, generator=draw)
    at = torch.arange(step.left + width + step.right)
    mask_BT = (at >= starts_B[:, None]) & (at < (starts_B + rows.lengths_B)[:, None])
    columns = {}
    for name in COLUMNS:
        flat = rows.tokens[name]
        outside = -torch.rand(mask_BT.shape, generator=draw, dtype=torch.float64) * 3
        columns[name] = outside.to(flat.dtype).masked_scatter(mask_BT, flat)
    return PaddedBatch(
        mask=mask_BT,
        **columns,
        step_tokens=int(step.rows.lengths_B.sum()),
        step_rows=len(step.rows),
        micro_batches=micro_batches,
        ranks=len(step.cut),
        longest=LONGEST,
    )


def padding(subject: PaddedLoss, shape: Shape) -> float:
    """Padded on either side by any amount."""
    step = build(shape)
    left, right = torch.randint(1, 4, (2,), generator=torch.Generator().manual_seed(shape.seed)).tolist()
    return _difference(run(subject, step), run(subject, replace(step, left=left, right=right)))


def order(subject: PaddedLoss, shape: Shape) -> float:
    """Rows in another order."""
    shuffled = torch.randperm(ROWS, generator=torch.Generator().manual_seed(shape.seed + 2))
    return _difference(run(subject, build(shape)), run(subject, replace(build(shape), cut=((shuffled,),))))


def micro_batches(subject: PaddedLoss, shape: Shape) -> float:
    """Cut into 2, 3, 4 and 6 micro-batches."""
    step = build(shape)
    parts = [torch.arange(ROWS).chunk(count) for count in (2, 3, 4, 6)]
    return worst_of([_difference(run(subject, step), run(subject, replace(step, cut=(cut,)))) for cut in parts])


def processes(subject: PaddedLoss, shape: Shape) -> float:
    """Split over 2 and 3 processes, each with as many micro-batches as one process had."""
    step, errors = build(shape), []
    for ranks in (2, 3):
        alone = replace(step, cut=(torch.arange(ROWS).chunk(2),))
        cut = [part.chunk(2) for part in torch.arange(ROWS).chunk(ranks)]
        errors.append(_difference(run(subject, alone), run(subject, replace(step, cut=cut))))
    return worst_of(errors)


def finite(subject: PaddedLoss, shape: Shape) -> float:
    """Single precision, one-token rows, and log-probs of 0 and -80 in all pairings."""
    for longest in (1, shape.longest):
        step = _single(build(replace(shape, longest=longest)))
        for policy, others in ((-1.0, -1.0), (0.0, 0.0), (-80.0, -80.0), (0.0, -80.0), (-80.0, 0.0)):
            filled = {name: torch.full_like(step.rows.tokens[name], others) for name in COLUMNS if "_logp" in name}
            logp = torch.full_like(step.rows.tokens["logp"], policy)
            found = run(subject, step.with_columns(**filled, logp=logp))
            if not all(bool(part.isfinite().all()) for part in (found.loss, *found.gradients.values())):
                return math.inf
    return 0.0


def nothing_to_learn(subject: PaddedLoss, shape: Shape) -> float:
    """Advantages of 0, values as they should be, reference and teacher that are the policy: no gradient."""
    step = build(shape)
    tokens = step.rows.tokens
    same = {name: tokens["logp"] for name in COLUMNS if name.endswith("_logp")}
    same |= {"advantage": torch.zeros_like(tokens["advantage"]), "value": tokens["returns"]}
    found = run(subject, step.with_columns(**same, old_value=tokens["returns"]))
    return worst_of([largest(part) for name, part in found.gradients.items() if name != "advantage"])


def on_policy(subject: PaddedLoss, shape: Shape) -> float | None:
    """Samples of the policy itself: the gradient of each token is its advantage times what the loss weighs it by.

    Without a ratio the loss is that weight times advantage times log-prob; with one, weight times advantage times 1.
    """
    step = build(shape)
    logp = step.rows.tokens["logp"]

    def at(shift: float) -> Result:
        same = {name: logp - shift for name in COLUMNS if name.endswith("logp")}
        return run(subject, step.with_columns(**same))

    found, moved = at(0.0), at(0.5)
    if "advantage" not in found.gradients or "logp" not in found.gradients:
        return None
    weight = found.gradients["advantage"]
    if largest(weight - moved.gradients["advantage"]) > 1e-9 * largest(weight):
        weight = weight / logp
    if bool((weight > 0).any()):  # a better token than expected must become likelier
        return math.inf
    expected = weight * step.rows.tokens["advantage"]
    return largest(found.gradients["logp"] - expected) / max(1e-3, largest(expected))


def single_precision(subject: PaddedLoss, shape: Shape) -> float:
    """Single against double precision."""
    return _difference(run(subject, build(shape)), run(subject, _single(build(shape))))


def _law(name: str, check: Check, text: str | None = None, tolerance: float | None = None) -> Law:
    known = LAWS[name]
    return replace(known, check=check, text=text or known.text, tolerance=tolerance or known.tolerance)


PADDED_LAWS: dict[str, Law] = {
    "padding": _law("padding", padding),
    "order": _law("order", order, "loss and gradient do not change with the order of rows"),
    "micro-batches": _law("micro-batches", micro_batches, "the gradient is the same in any number of micro-batches"),
    "processes": _law("processes", processes, "the gradient is the same on any number of processes"),
    "finite": _law("finite", finite, "loss and gradient are finite at the extremes, in single precision"),
    "nothing to learn": _law(
        "nothing to learn", nothing_to_learn, "advantages of 0, right values, equal policies: no gradient"
    ),
    "on-policy": _law("on-policy", on_policy, "the gradient of a token is its weight times its advantage", 1e-9),
    "single precision": _law("single precision", single_precision),
}


def _single(step: Step) -> Step:
    return step.with_columns(**{name: part.float() for name, part in step.rows.tokens.items()})


def _difference(first: Result, second: Result) -> float:
    """Return the largest relative difference of loss and gradients."""
    errors = [relative(float(first.loss), float(second.loss))]
    for name in set(first.gradients) & set(LEAVES[:2]):
        expected = first.gradients[name]
        errors.append(largest(expected - second.gradients[name]) / max(1e-3, largest(expected)))
    return worst_of(errors)
