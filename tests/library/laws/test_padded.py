"""Laws for losses of other trainers: a right loss has no error, and a wrong one has an example."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.padded import PaddedBatch, PaddedLoss
from posttrain.laws.cases import Shape
from posttrain.laws.examples import Example, Miss
from posttrain.laws.laws import LAWS
from posttrain.laws.padded import (
    PADDED_LAWS,
    _by_column,
    _by_gradient,
    _difference,
    _law,
    _single,
    _weighed,
    _without_tokens,
    finite,
    micro_batches,
    nothing_to_learn,
    on_policy,
    order,
    padding,
    processes,
    single_precision,
)
from posttrain.laws.padded_cases import build, run
from tests.library.laws.test_wrong_losses import RIGHT, WRONG, mean, rows_of, sequence_ratio

SHAPE = Shape(seed=3, longest=5)
CLIP = PaddedLoss(RIGHT["clip"])
ROUNDING = 1e-9


def wrong(name: str) -> PaddedLoss:
    return PaddedLoss(WRONG[name][0])


def example_of(error: float | None) -> Example:
    assert isinstance(error, Miss)
    return error.example()


def gspo(batch: PaddedBatch) -> Tensor:
    gain = sequence_ratio(batch) * batch.advantage
    return rows_of(-(gain * batch.mask).sum(1) / batch.mask.sum(1).clamp(min=1), batch)


def last_row_counts_twice(batch: PaddedBatch) -> Tensor:
    weights = torch.ones(len(batch.mask), 1, dtype=batch.logp.dtype)
    weights[-1] = 2.0
    return mean(-batch.logp * batch.advantage * weights, batch)


@pytest.mark.parametrize(
    ("law", "broken"),
    [
        (padding, wrong("mask forgotten")),
        (order, PaddedLoss(last_row_counts_twice)),
        (micro_batches, wrong("a mean over the micro-batch")),
        (processes, wrong("ranks forgotten")),
    ],
)
def test_what_does_not_change_the_gradient(law: Callable[..., float], broken: PaddedLoss) -> None:
    assert law(CLIP, SHAPE) < ROUNDING
    assert law(broken, SHAPE) > 1e-2


def test_numbers_stay_finite() -> None:
    assert finite(CLIP, SHAPE) == 0.0
    found = example_of(finite(wrong("0 / 0 in a row without tokens"), SHAPE))
    assert found.place == "every token" and math.isnan(found.found) and found.expected == "a finite number"
    assert found.inputs == {"logp": -1.0, "every other log-prob": -1.0}
    step = _without_tokens(SHAPE)
    assert step.rows.lengths_B.tolist() == [0, *build(SHAPE).rows.lengths_B.tolist()[1:]]
    assert_close(step.rows.tokens["logp"], build(SHAPE).rows.tokens["logp"][1:])


def test_where_nothing_is_left_to_learn_there_is_no_gradient() -> None:
    assert nothing_to_learn(CLIP, SHAPE) < ROUNDING
    entropy = PaddedLoss(lambda batch: mean(batch.logp, batch))
    count = int(build(SHAPE).rows.lengths_B.sum())
    assert nothing_to_learn(entropy, SHAPE) == pytest.approx(1 / count)


def test_the_gradient_is_the_weight_times_the_advantage() -> None:
    for name in (
        "clip",
        "score function",
        "REINFORCE by logp - its own value",
        "REINFORCE by exp(logp - its own value)",
    ):
        error = on_policy(PaddedLoss(RIGHT[name]), SHAPE)
        assert error is not None and error < 1e-8, name
    gspo_error = on_policy(PaddedLoss(gspo), SHAPE)
    assert gspo_error is not None and gspo_error < 1e-8
    assert on_policy(PaddedLoss(lambda batch: mean(batch.value.square(), batch)), SHAPE) is None
    assert on_policy(wrong("sign of the advantage"), SHAPE) == math.inf
    error = on_policy(wrong("clipped ratio detached"), SHAPE)
    assert error is not None and error > 1e-3


def test_the_distance_from_the_weights() -> None:
    step = build(SHAPE)
    assert _weighed(PaddedLoss(lambda batch: mean(batch.value.square(), batch)), step) is None
    assert (_weighed(CLIP, step) or 0.0) < 1e-8
    by_row = _weighed(CLIP, step, step.rows.sum_rows)
    assert by_row is not None and by_row < 1e-8
    found = _weighed(wrong("sign of the advantage"), step)
    example = example_of(found)
    count = int(step.rows.lengths_B.sum())
    assert example.quantity == "gradient by logp" and example.found == pytest.approx(-float(example.expected))
    assert abs(example.found) == pytest.approx(float(step.rows.tokens["advantage"].abs().max()) / count, rel=1e-4)


def test_a_loss_whose_value_never_changes() -> None:
    step = build(SHAPE)
    right = PaddedLoss(RIGHT["REINFORCE by exp(logp - its own value)"])
    assert _by_gradient(right, step, Tensor.clone) < 1e-8
    turned = PaddedLoss(lambda b: mean(b.advantage * (b.logp - b.logp.detach()).exp(), b))
    assert _by_gradient(turned, step, Tensor.clone) == math.inf
    constant = PaddedLoss(lambda b: mean(0 * b.logp * b.advantage, b))
    assert _by_gradient(constant, step, Tensor.clone) == math.inf
    squared = PaddedLoss(lambda b: mean(-b.advantage * b.advantage.abs() * (b.logp - b.logp.detach()), b))
    assert _by_gradient(squared, step, Tensor.clone) == pytest.approx(0.25)


def test_single_precision_is_near() -> None:
    assert 0 < single_precision(CLIP, SHAPE) < 1e-4
    step = _single(build(SHAPE))
    assert all(part.dtype == torch.float32 for part in step.rows.tokens.values())


def test_examples_of_tokens_and_of_rows() -> None:
    result = run(CLIP, build(SHAPE))
    found = result.gradients["logp"].clone()
    found[2] += 1.0
    error = _by_column(result, "logp", found, result.gradients["logp"], 0.25)
    example = error.example()
    starts = build(SHAPE).rows.lengths_B.cumsum(0).tolist()
    row = next(nth for nth, end in enumerate(starts) if end > 2)
    assert error == 0.25 and example.quantity == "gradient by logp"
    assert example.place == f"row {row}, token {2 - ([0, *starts][row])}"
    assert example.found == pytest.approx(float(found[2])) and example.expected == pytest.approx(float(found[2]) - 1)
    assert example.inputs.keys() == {"logp", "old_logp", "advantage", "mask"}
    by_row = _by_column(result, "logp", torch.tensor([0.0] * 11 + [2.0]), torch.zeros(12), 1.0).example()
    assert (by_row.place, by_row.found, by_row.expected) == ("row 11, sums over its tokens", 2.0, 0.0)


def test_differences_of_loss_and_gradients() -> None:
    first = run(CLIP, build(SHAPE))
    assert _difference(first, first) == 0.0
    other: Any = replace(first, gradients={**first.gradients, "logp": 3 * first.gradients["logp"]})
    assert _difference(first, other) == pytest.approx(2.0)


def test_laws_are_those_of_objectives_with_other_checks() -> None:
    law = _law("order", order)
    assert (law.check, law.text, law.tolerance) == (order, LAWS["order"].text, LAWS["order"].tolerance)
    assert _law("order", order, "another", 0.5).text == "another" and _law("order", order, None, 0.5).tolerance == 0.5
    assert PADDED_LAWS["padding"].check is padding
