"""Random optimizer steps for other trainers' losses, and their gradients as a trainer adds them up.

The trainer adds the gradients of a process's micro-batches and averages them over processes. As in such trainers, the
parts of a step have equal numbers of rows and unequal numbers of tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor

from posttrain.algorithms.padded import PaddedBatch, PaddedLoss
from posttrain.errors import ParamsError
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import LONGEST, Shape

ROWS = 12
"""The number of rows of a step. It is divisible by 2, 3, 4 and 6."""
COLUMNS = [column.name for column in fields(PaddedBatch) if str(column.type) == "Tensor" and column.name != "mask"]
LEAVES = ("logp", "value", "advantage")
"""The columns that the loss is differentiated by. A trainer uses only the first two."""


@dataclass(frozen=True)
class Step:
    """The rows of a step, their division into each process's micro-batches, and the padding on either side."""

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
    """The loss of a step, and its gradients with respect to the columns that it reads."""

    loss: Tensor
    gradients: dict[str, Tensor]
    subject: PaddedLoss
    step: Step


def build(shape: Shape) -> Step:
    """Return a step of float64 columns, drawn with the shape's seed."""
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
    """Compute the loss of every micro-batch, and the gradients of the step as a trainer adds them up."""
    leaves = {name: step.rows.tokens[name].detach().clone().requires_grad_() for name in LEAVES}
    rows = step.rows.with_tokens(**leaves)
    with torch.random.fork_rng(devices=[]):  # a loss that draws numbers draws the same ones each time
        torch.manual_seed(step.seed)
        losses = [
            _scalar(subject.loss(_padded(step, rows.select(index), len(parts))), rows) / len(step.cut)
            for parts in step.cut
            for index in parts
        ]
    total = torch.stack(losses).sum()
    computed = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    gradients = {
        name: part
        for name, part in zip(leaves, computed, strict=True)
        if part is not None  # type: ignore[redundant-expr]
    }
    return Result(total.detach(), gradients, subject, step)


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
