"""Linear layers with a LoRA adapter as one operation on CUDA, which adds the adapter inside its products.

PEFT computes `base(x) + B(A(x)) * scale` with a pass for the scale and one for the sum, and two more for the gradient.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.models.adapters import adapted_layers
from posttrain.models.forward.activations import SELECTING
from posttrain.models.forward.products import Matrix, matrix_of, product, slope_through, weight_gradients


class AdaptedLinear(nn.Module):
    """A mixin for PEFT's linear layers."""

    def forward(self, x: Tensor, *args: Any, **named: Any) -> Any:
        """Return the layer's output, by one operation on CUDA if the adapter is plain, else by PEFT's code."""
        usual = x.is_cuda and not args and not named and not torch.compiler.is_compiling() and not SELECTING
        if usual and torch.backends.cuda.flash_sdp_enabled():  # type: ignore[no-untyped-call]
            output = adapted_output(self, x)
            if output is not None:
                return output
        return super().forward(x, *args, **named)


def adapted_output(layer: Any, x: Tensor) -> Tensor | None:
    """Return the output of a linear layer with an adapter; None if the layer does anything else (`matrix_of`)."""
    matrix = matrix_of(layer)
    if matrix is None or matrix.a is None or x.dtype != matrix.weight.dtype:
        return None
    out: Tensor = _Adapted.apply(x.flatten(0, -2), matrix, *matrix.tensors)  # type: ignore[no-untyped-call]
    return out.view(*x.shape[:-1], -1)


class _Adapted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, matrix: Matrix, *tensors: Any) -> Tensor:
        out, low = product(x_ND, matrix)
        ctx.save_for_backward(x_ND, low, *tensors)
        ctx.matrix = matrix
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        x_ND, low = ctx.saved_tensors[:2]
        of_x, grad_low = slope_through(grads[0], ctx.matrix, None)
        return of_x, None, *weight_gradients(grads[0], x_ND, low, grad_low, ctx.matrix, ctx.needs_input_grad[2:])


def fuse_adapters(model: Any) -> None:
    """Let PEFT's linear layers of a model use this file's operation, in place."""
    for _, layer in adapted_layers(model):
        kind: Any = type(layer)
        if kind.__name__ == "Linear" and not isinstance(layer, AdaptedLinear):
            layer.__class__ = _fused(kind)


@cache
def _fused(kind: Any) -> Any:
    return type(kind.__name__, (AdaptedLinear, kind), {"__module__": kind.__module__})
