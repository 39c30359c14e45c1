"""Random steps for losses of other trainers, and their gradients as a trainer adds them up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.padded import PaddedBatch, PaddedLoss
from posttrain.errors import ParamsError
from posttrain.laws.cases import LONGEST, Shape
from posttrain.laws.padded_cases import COLUMNS, ROWS, build, run

SHAPE = Shape(seed=3, longest=5)
SEEN: list[PaddedBatch] = []


@PaddedLoss
def mean(batch: PaddedBatch) -> Tensor:
    SEEN.append(batch)
    return -(batch.logp * batch.mask).sum() / batch.step_tokens


def test_build() -> None:
    step = build(SHAPE)
    assert len(step.rows) == ROWS and set(step.rows.tokens) == set(COLUMNS) and step.seed == 3
    assert_close(build(SHAPE).rows.tokens["logp"], step.rows.tokens["logp"])
    replaced = step.with_columns(advantage=torch.zeros_like(step.rows.tokens["advantage"]))
    assert not replaced.rows.tokens["advantage"].any()


def test_the_loss_of_a_step_is_that_of_its_parts() -> None:
    SEEN.clear()
    step = build(SHAPE)
    result = run(mean, step)
    logp = step.rows.tokens["logp"]
    assert_close(result.loss, -logp.mean())
    assert_close(result.gradients["logp"], torch.full_like(logp, -1 / len(logp)))
    assert "value" not in result.gradients and result.step is step and result.subject is mean
    (batch,) = SEEN
    assert (batch.step_rows, batch.step_tokens, batch.micro_batches, batch.ranks) == (ROWS, len(logp), 1, 1)
    assert batch.longest == LONGEST and batch.mask.sum(1).tolist() == step.rows.lengths_B.tolist()
    assert_close(batch.logp[batch.mask], logp)


def test_what_is_no_loss() -> None:
    for wrong in (lambda batch: 3.0, lambda batch: batch.logp):
        with pytest.raises(ParamsError, match="without gradient or not a single number"):
            run(PaddedLoss(wrong), build(SHAPE))  # type: ignore[arg-type]
