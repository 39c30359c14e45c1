"""A matrix with its adapter: the output and every gradient of the formula by autograd."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from posttrain.models.forward.products import (
    Matrix,
    join,
    joined,
    matrix_of,
    outer,
    product,
    slope_through,
    weight_gradients,
)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=draw, dtype=torch.float64, requires_grad=True) for shape in shapes]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("adapted", [False, True])
def test_products_and_gradients_are_those_of_the_formula(*, adapted: bool, biased: bool) -> None:
    x, weight, bias, a, b, grad = tensors((5, 4), (3, 4), (3,), (2, 4), (3, 2), (5, 3))
    parts = (weight, bias if biased else None, a if adapted else None, b if adapted else None)
    matrix = Matrix(*parts, scale=0.7)
    expected = x @ weight.T + (bias if biased else 0) + (0.7 * (x @ a.T) @ b.T if adapted else 0)
    wanted = [part for part in (x, *parts) if part is not None]
    exact = iter(torch.autograd.grad(expected, wanted, grad))
    with torch.no_grad():
        found, low = product(x, matrix)
        start = torch.ones_like(x)
        total, grad_low = slope_through(grad, matrix, start.clone())
        alone, _ = slope_through(grad, matrix, None)
        of_parts = weight_gradients(grad, x, low, grad_low, matrix, (True,) * 4)
    of_x = next(exact)
    for one, other in ((found, expected), (alone, of_x), (total, of_x + start)):
        assert torch.allclose(one, other)
    for part, one in zip(parts, of_parts, strict=True):
        assert (one is None) == (part is None)
        assert one is None or torch.allclose(one, next(exact))
    assert weight_gradients(grad, x, low, grad_low, matrix, (False,) * 4) == (None,) * 4


def test_an_output_may_be_columns_of_a_larger_one() -> None:
    x, weight, a, b = tensors((5, 4), (3, 4), (2, 4), (3, 2))
    both = torch.zeros(5, 6, dtype=torch.float64)
    with torch.no_grad():
        product(x, Matrix(weight, None, a, b, 2.0), both[:, 3:])
        assert torch.allclose(both[:, 3:], x @ weight.T + 2 * (x @ a.T) @ b.T)
    assert not both[:, :3].any()


def test_a_gradient_has_the_dtype_of_its_sums() -> None:
    weight = nn.Parameter(torch.ones(3, 4, dtype=torch.bfloat16))
    grad, x = torch.ones(5, 3, dtype=torch.bfloat16), torch.ones(5, 4, dtype=torch.bfloat16)
    assert outer(grad, x, weight).dtype == torch.bfloat16
    weight.grad_dtype = torch.float32
    assert outer(grad, x, weight).dtype == torch.float32


def test_joined_weights_are_one_matrix_and_two_parameters() -> None:
    pair: Any = [Matrix(nn.Parameter(torch.randn(3, 4))) for _ in range(2)]
    before = [one.weight.detach().clone() for one in pair]
    assert joined(*pair) is None
    join(*pair)
    whole = joined(*pair)
    assert whole is not None and torch.equal(whole, torch.cat(before))
    assert all(torch.equal(one.weight, part) for one, part in zip(pair, before, strict=True))
    with torch.no_grad():
        pair[1].weight.add_(1)
    assert torch.equal(whole[3:], before[1] + 1)
    assert joined(pair[1], pair[0]) is None


def test_only_a_linear_layer_is_a_matrix() -> None:
    linear = nn.Linear(3, 2)
    found = matrix_of(linear)
    assert found is not None and found.weight is linear.weight and found.bias is linear.bias and found.a is None
    assert matrix_of(nn.Sequential(linear)) is None
