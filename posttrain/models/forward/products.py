"""Products with a layer's matrices and their gradients, for layers that compute their own backward pass.

    y = x W^T + b + s (x A^T) B^T        A and B: an adapter, if there is one

A gradient with respect to a weight is summed in the dtype that its `.grad` has, so a float32 master needs no cast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from posttrain.models.adapters import linear_of

TENSORS = 4
"""Tensors of a matrix: weight, bias, A and B."""


@dataclass(frozen=True)
class Matrix:
    """A linear layer, with its adapter if there is one."""

    weight: Tensor
    bias: Tensor | None = None
    a: Tensor | None = None
    b: Tensor | None = None
    scale: float = 1.0

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """The tensors that may be trained."""
        return self.weight, self.bias, self.a, self.b


def matrix_of(layer: Any) -> Matrix | None:
    """Return a linear layer's matrix; None if the layer computes anything else, e.g. dropout, DoRA or 4 bits."""
    linear = linear_of(layer)
    if type(linear) is not nn.Linear:
        return None
    if linear is layer or layer.disable_adapters:
        return Matrix(linear.weight, linear.bias) if linear is layer or not layer.merged else None
    if layer.merged or layer.lora_variant or len(layer.active_adapters) != 1:
        return None
    [name] = layer.active_adapters
    if name not in layer.lora_A or type(layer.lora_dropout[name]) is not nn.Identity:
        return None
    a, b = layer.lora_A[name], layer.lora_B[name]
    if b.bias is not None or a.weight.dtype != linear.weight.dtype:
        return None
    return Matrix(linear.weight, linear.bias, a.weight, b.weight, float(layer.scaling[name]))


def product(x: Tensor, matrix: Matrix, out: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """Return the matrix's output, in `out` if given, and x A^T."""
    if matrix.bias is None:
        y = torch.mm(x, matrix.weight.t(), out=out)
    else:
        y = torch.addmm(matrix.bias, x, matrix.weight.t(), out=out)
    return y, add_adapter_(y, x, matrix)


def add_adapter_(y: Tensor, x: Tensor, matrix: Matrix) -> Tensor | None:
    """Add the adapter's output to y in place. Return x A^T; None without an adapter."""
    if matrix.a is None or matrix.b is None:
        return None
    low = x @ matrix.a.t()
    y.addmm_(low, matrix.b.t(), alpha=matrix.scale)
    return low


def slope_through(grad: Tensor, matrix: Matrix, total: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Return the gradient with respect to x, added to `total` in place if given, and the gradient for x A^T."""
    total = grad @ matrix.weight if total is None else total.addmm_(grad, matrix.weight)
    return add_adapter_slope_(grad, matrix, total)


def add_adapter_slope_(grad: Tensor, matrix: Matrix, total: Tensor) -> tuple[Tensor, Tensor | None]:
    """Add the adapter's part of the gradient with respect to x in place."""
    if matrix.a is None or matrix.b is None:
        return total, None
    low = grad.new_empty(len(grad), matrix.b.shape[1])
    torch.addmm(low, grad, matrix.b, beta=0, alpha=matrix.scale, out=low)
    return total.addmm_(low, matrix.a), low


def weight_gradients(
    grad: Tensor, x: Tensor, low: Tensor | None, grad_low: Tensor | None, matrix: Matrix, needs: Sequence[bool]
) -> tuple[Tensor | None, ...]:
    """Return the gradients with respect to the matrix's tensors that `needs` selects."""
    weight, bias, a, b = matrix.tensors
    of_weight = outer(grad, x, weight) if needs[0] else None
    of_bias = grad.sum(0, dtype=sums_in(bias)) if needs[1] and bias is not None else None
    of_a = outer(grad_low, x, a) if needs[2] and grad_low is not None and a is not None else None
    of_b = outer(grad, low, b, matrix.scale) if needs[3] and low is not None and b is not None else None
    return of_weight, of_bias, of_a, of_b


def outer(grad: Tensor, x: Tensor, weight: Any, scale: float = 1.0) -> Tensor:
    """Return scale grad^T x, the gradient with respect to the weight of x W^T, in the dtype of its sums."""
    dtype = sums_in(weight)
    if dtype == grad.dtype or not grad.is_cuda:
        product = (grad.t() @ x).to(dtype)
    else:  # CUDA returns its accumulated sum
        product = torch.mm(grad.t(), x, out_dtype=dtype)
    return product if scale == 1.0 else product.mul_(scale)


def sums_in(weight: Any) -> torch.dtype:
    """Return the dtype of a weight's `.grad`."""
    dtype: torch.dtype = getattr(weight, "grad_dtype", None) or weight.dtype
    return dtype


def joined(first: Matrix, second: Matrix) -> Tensor | None:
    """Return two weights that are adjacent in memory as one matrix; None if they are not adjacent."""
    one, two = first.weight, second.weight
    size = one.numel() * one.element_size()
    near = one.is_contiguous() and two.is_contiguous() and one.data_ptr() + size == two.data_ptr()
    if not near or one.untyped_storage().data_ptr() != two.untyped_storage().data_ptr() or first.bias is not None:
        return None
    return one.detach().as_strided((one.shape[0] + two.shape[0], one.shape[1]), one.stride())


@torch.no_grad()
def join(first: Matrix, second: Matrix) -> None:
    """Move two weights of 16 bits into one memory, one after the other. Both stay separate parameters."""
    one, two = first.weight, second.weight
    both = torch.cat([one, two])
    one.data, two.data = both[: one.shape[0]], both[one.shape[0] :]
