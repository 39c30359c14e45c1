"""RMS norms of transformers' families as one operation each, which saves only its input for the backward pass.

transformers computes a norm in six operations, for which autograd saves two more results. The forward pass on a CPU
gives the same bits. On CUDA it is torch's own kernel.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import rms_norm

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class FusedNorm(nn.Module):
    """A mixin for the norm classes of transformers."""

    weight: Tensor
    variance_epsilon: float

    def forward(self, hidden_states: Tensor) -> Tensor:
        """Return x / rms(x) * weight, over the last dimension."""
        if hidden_states.dtype not in DTYPES or torch.compiler.is_compiling():
            plain: Tensor = super().forward(hidden_states)
            return plain
        if hidden_states.is_cuda:
            return rms_norm(hidden_states, self.weight.shape, self.weight, self.variance_epsilon)
        return _norm(hidden_states, self.weight, self.variance_epsilon)


def fuse_norms(model: nn.Module) -> None:
    """Run each of a model's norms that equal Llama's as one operation, in place."""
    for module in model.modules():
        kind: Any = type(module)
        if _is_llamas(kind):
            module.__class__ = _fused(kind)


def has_fused_norms(model: nn.Module) -> bool:
    """Tell whether `fuse_norms` would change or has changed norms in the model."""
    kinds: set[Any] = {type(module) for module in model.modules()}
    return any(issubclass(kind, FusedNorm) or _is_llamas(kind) for kind in kinds)


@cache
def _is_llamas(kind: Any) -> bool:
    """Tell whether a class is a norm with Llama's code, which transformers copies into each family."""
    if not kind.__name__.endswith("RMSNorm") or not kind.__module__.startswith("transformers."):
        return False
    from transformers.models.llama.modeling_llama import LlamaRMSNorm

    return all(_source(getattr(kind, name)) == _source(getattr(LlamaRMSNorm, name)) for name in ("__init__", "forward"))


def _source(function: Callable[..., Any]) -> str:
    return "\n".join(inspect.getsource(function).split('"""')[::2])  # without the text that names the family


@cache
def _fused(kind: Any) -> Any:
    return type(kind.__name__, (FusedNorm, kind), {"__module__": kind.__module__})


class _Norm(torch.autograd.Function):
    """The norm, computed in float32 as in transformers."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, epsilon: float) -> Tensor:
        wide = x.float()
        squares = wide.pow(2)
        scale = squares.mean(-1, keepdim=True).add_(epsilon).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        ctx.epsilon = epsilon
        unit = torch.mul(wide, scale, out=squares).to(x.dtype)
        return unit.mul_(weight) if weight.dtype == unit.dtype else weight * unit

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        grad, again = grads[0].float(), torch.is_grad_enabled()  # a gradient of the gradient is wanted
        if again:
            scale = (x.float().pow(2).mean(-1, keepdim=True) + ctx.epsilon).rsqrt()
        unit = x.float() * scale
        along = grad * unit
        of_weight = along.flatten(0, -2).sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        slope = (along.flatten(0, -2) @ weight.float() / x.shape[-1]).view(scale.shape)
        if again:
            of_x = (grad * weight - unit * slope) * scale
        else:
            of_x = torch.mul(grad, weight, out=along).addcmul_(unit, slope, value=-1).mul_(scale)
        return of_x.to(x.dtype), of_weight, None


_norm: Callable[[Tensor, Tensor, float], Tensor] = _Norm.apply
