"""A standard decoder layer as two operations that compute their own backward pass.

    q, k, v = rotate(norm(W x))      attention      s = x + W_o a,   y = s + W_down swiglu(W_gate_up norm(s))

Kernels compute norms, rotary positions and SwiGLU (`kernels`). Gradients of weights are summed in the dtype of their
`.grad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.models.forward import kernels
from posttrain.models.forward.forward import PackedAttention, Scoring
from posttrain.models.forward.products import (
    TENSORS,
    Matrix,
    add_adapter_,
    add_adapter_slope_,
    join,
    joined,
    matrix_of,
    outer,
    product,
    slope_through,
    sums_in,
    weight_gradients,
)
from posttrain.models.master_weights import MASTER


@dataclass(frozen=True)
class _Norm:
    weight: Tensor
    epsilon: float


@dataclass(frozen=True)
class _Parts:
    """A layer's parameters, without their module."""

    before: _Norm
    heads: tuple[_Norm, _Norm] | None
    qkv: tuple[Matrix, Matrix, Matrix]
    out: Matrix
    after: _Norm
    gate_up: tuple[Matrix, Matrix]
    down: Matrix
    size: int
    selective: bool = False
    """True if norms and SwiGLU are computed again in the backward pass."""


def parts_of(layer: Any, dtype: torch.dtype) -> _Parts | None:
    """Return a layer's parameters; None if a matrix is not a plain matrix with an optional plain adapter.

    Nor may its modules have hooks, which would not be called here, or its weights several dtypes.
    """
    if any(part.dtype != dtype for part in layer.parameters()) or _hooked(layer):
        return None
    attention, mlp = layer.self_attn, layer.mlp
    names = ("q_proj", "k_proj", "v_proj", "o_proj")
    linear = [*(getattr(attention, name) for name in names), mlp.gate_proj, mlp.up_proj, mlp.down_proj]
    matrices = [matrix for matrix in map(matrix_of, linear) if matrix is not None]
    if len(matrices) != len(linear):
        return None
    q, k, v, o, gate, up, down = matrices
    heads = None
    if hasattr(attention, "q_norm"):
        heads = _norm(attention.q_norm), _norm(attention.k_norm)
    before, after = _norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)
    return _Parts(before, heads, (q, k, v), o, after, (gate, up), down, int(attention.head_dim))


def _norm(module: Any) -> _Norm:
    return _Norm(module.weight, module.variance_epsilon)


def _summed(weight: Tensor) -> Tensor:
    """Return a norm's weight in the dtype of its `.grad`, because its gradient has the weight's dtype."""
    return weight.to(sums_in(weight)) if weight.requires_grad else weight


class _QueryKeyValue(torch.autograd.Function):
    """The first half of a layer: [N, D] -> rotated queries and keys, values [N, H, S], and the input itself.

    The input goes on to the residual, so both of its gradients meet in one kernel.
    """

    @staticmethod
    def forward(ctx: Any, x_ND: Tensor, cos_NS: Tensor, sin_NS: Tensor, parts: _Parts, *tensors: Any) -> Any:
        y_ND, scale_N = kernels.norm(x_ND, parts.before.weight, parts.before.epsilon)
        made = [product(y_ND, matrix) for matrix in parts.qkv]
        query, key, value = (part.view(len(part), -1, parts.size) for part, _ in made)
        saved: list[Any] = []
        if parts.heads is not None:
            saved, normed = [query, key], []
            for part, norm in zip(saved[:], parts.heads, strict=True):
                out, scale = kernels.norm(part.flatten(0, 1), norm.weight, norm.epsilon)
                normed.append(out.view(part.shape))
                saved.append(scale)
            query, key = normed
        kernels.rotate_(query, key, cos_NS, sin_NS)
        lows = [low for _, low in made]
        again = None if parts.selective else y_ND
        ctx.save_for_backward(x_ND, again, scale_N, cos_NS, sin_NS, *lows, *saved, *tensors)
        ctx.parts, ctx.kept = parts, len(saved)
        return query, key, value, x_ND.view_as(x_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x_ND, y_ND, scale_N, cos_NS, sin_NS, *rest = ctx.saved_tensors
        lows, saved, parts, needs = rest[:3], rest[3 : 3 + ctx.kept], ctx.parts, ctx.needs_input_grad[4:]
        if y_ND is None:
            y_ND, _ = kernels.norm(x_ND, parts.before.weight, parts.before.epsilon)
        query, key, value, residual = (part.contiguous() for part in grads)
        kernels.rotate_(query, key, cos_NS, sin_NS, back=True)
        gradients: list[Any] = [None] * len(needs)
        slopes = [part.flatten(0, 1) for part in (query, key)]
        for place in range(2 if saved else 0):
            x, scale, weight = saved[place].flatten(0, 1), saved[2 + place], _summed(parts.heads[place].weight)
            slopes[place], gradients[1 + place] = kernels.norm_backward(
                slopes[place], x, weight, scale, weighed=needs[1 + place]
            )
        total: Tensor | None = None
        flat = [part.view(len(x_ND), -1) for part in (*slopes, value)]
        for place, (slope, matrix) in enumerate(zip(flat, parts.qkv, strict=True)):
            span = slice(3 + TENSORS * place, 3 + TENSORS * (place + 1))
            total, low = slope_through(slope, matrix, total)
            gradients[span] = weight_gradients(slope, y_ND, lows[place], low, matrix, needs[span])
        assert total is not None
        of_x, gradients[0] = kernels.add_norm_backward(
            total, residual, x_ND, _summed(parts.before.weight), scale_N, weighed=needs[0]
        )
        return of_x, None, None, None, *gradients


class _Rest(torch.autograd.Function):
    """The second half of a layer: attention's output [N, H S] and the layer's input [N, D] -> the layer's output."""

    @staticmethod
    def forward(ctx: Any, mixed: Tensor, x_ND: Tensor, parts: _Parts, *tensors: Any) -> Tensor:
        added, low_out = product(mixed, parts.out)
        y_ND, scale_N, sum_ND = kernels.add_norm(added, x_ND, parts.after.weight, parts.after.epsilon)
        both, lows = _gate_up(y_ND, parts.gate_up)
        inner = kernels.swiglu(both)
        down, whole = parts.down, x_ND.new_empty(1, *x_ND.shape)  # not a view, since FSDP wants a tensor of its own
        out = torch.addmm(sum_ND, inner, down.weight.t(), out=whole[0])
        if down.bias is not None:
            out.add_(down.bias)
        low_down = add_adapter_(out, inner, down)
        again = (None, None) if parts.selective else (y_ND, inner)
        ctx.save_for_backward(mixed, *again, scale_N, sum_ND, both, low_out, *lows, low_down, *tensors)
        ctx.parts = parts
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        mixed, y_ND, inner, scale_N, sum_ND, both, low_out, *lows, low_down = ctx.saved_tensors[:10]
        parts, needs, grad = ctx.parts, ctx.needs_input_grad[3:], grads[0].squeeze(0).contiguous()
        if y_ND is None:
            y_ND, _ = kernels.norm(sum_ND, parts.after.weight, parts.after.epsilon)
            inner = kernels.swiglu(both)
        gradients: list[Any] = [None] * len(needs)
        places = [slice(1 + TENSORS * number, 1 + TENSORS * (number + 1)) for number in range(4)]
        out, down = parts.out, parts.down
        of_inner, low = slope_through(grad, down, None)
        gradients[places[3]] = weight_gradients(grad, inner, low_down, low, down, needs[places[3]])
        of_both = kernels.swiglu_backward(of_inner, both)
        needed = [needs[place] for place in places[1:3]]
        of_y, gradients[places[1]], gradients[places[2]] = _gate_up_backward(of_both, y_ND, parts.gate_up, lows, needed)
        of_sum, gradients[0] = kernels.add_norm_backward(
            of_y, grad, sum_ND, _summed(parts.after.weight), scale_N, weighed=needs[0]
        )
        of_mixed, low = slope_through(of_sum, out, None)
        gradients[places[0]] = weight_gradients(of_sum, mixed, low_out, low, out, needs[places[0]])
        return of_mixed, of_sum, None, *gradients


def _gate_up(y_ND: Tensor, pair: tuple[Matrix, Matrix]) -> tuple[Tensor, list[Tensor | None]]:
    """Return the outputs of two matrices side by side: of one product if their weights are next to each other."""
    whole, width = joined(*pair), pair[0].weight.shape[0]
    if whole is None:
        both = y_ND.new_empty(len(y_ND), 2 * width)
        halves = both[:, :width], both[:, width:]
        return both, [product(y_ND, matrix, out)[1] for matrix, out in zip(pair, halves, strict=True)]
    both = y_ND @ whole.t()
    halves = both[:, :width], both[:, width:]
    return both, [add_adapter_(out, y_ND, matrix) for matrix, out in zip(pair, halves, strict=True)]


def _gate_up_backward(
    grad: Tensor, y_ND: Tensor, pair: tuple[Matrix, Matrix], lows: Sequence[Any], needs: Sequence[Sequence[bool]]
) -> tuple[Tensor, tuple[Any, ...], tuple[Any, ...]]:
    """Return the gradients with respect to the input and to the tensors of both matrices."""
    width, whole = pair[0].weight.shape[0], joined(*pair)
    total = None if whole is None else grad @ whole
    weights: list[Any] = [None, None]
    if whole is not None and needs[0][0] and needs[1][0]:
        weights = list(torch.split(outer(grad, y_ND, pair[0].weight), width))
    gradients: list[tuple[Any, ...]] = []
    for place, (slope, matrix) in enumerate(zip(torch.split(grad, width, dim=1), pair, strict=True)):
        if whole is None or total is None:
            total, low = slope_through(slope, matrix, total)
        else:
            total, low = add_adapter_slope_(slope, matrix, total)
        needed = needs[place] if weights[place] is None else (False, *needs[place][1:])
        of_weight, *others = weight_gradients(slope, y_ND, lows[place], low, matrix, needed)
        gradients.append((weights[place] if of_weight is None else of_weight, *others))
    assert total is not None
    return total, gradients[0], gradients[1]


def layer_output(
    layer: Any, hidden: Tensor, positions: Any, attention: PackedAttention, scoring: Scoring, *, selects: bool = False
) -> Any:
    """Return the layer's output [1, N, D], computed by this file; None if `parts_of` has none.

    `selects`: keep only results of products and attention for the backward pass.
    """
    parts = parts_of(layer, hidden.dtype)
    if parts is None:
        return None
    parts = replace(parts, selective=selects)
    _join_once(layer, parts)
    cos, sin = (part.squeeze(0) for part in positions)
    heads = (None, None) if parts.heads is None else tuple(norm.weight for norm in parts.heads)
    tensors = (parts.before.weight, *heads, *(one for part in parts.qkv for one in part.tensors))
    apply: Any = _QueryKeyValue.apply
    query, key, value, x_ND = apply(hidden.squeeze(0), cos, sin, parts, *tensors)
    query, key, value = (part.transpose(0, 1).unsqueeze(0) for part in (query, key, value))
    mixed = attention.attend(layer.self_attn.layer_idx, query, key, value, scoring)
    rest = (parts.out, *parts.gate_up, parts.down)
    apply = _Rest.apply
    tensors = (parts.after.weight, *(one for part in rest for one in part.tensors))
    return apply(mixed.squeeze(0).flatten(1), x_ND, parts, *tensors)


def _hooked(layer: nn.Module) -> bool:
    """Tell whether somebody has put a hook on a module within the layer."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(part, kind) for part in layer.modules() if part is not layer for kind in kinds)


def _join_once(layer: Any, parts: _Parts) -> None:
    """Put the weights of gate and up next to each other, unless FSDP owns their memory or files are made from it."""
    weights, biased = [one.weight for one in parts.gate_up], parts.gate_up[0].bias is not None
    ours = all(one.is_cuda and (hasattr(one, MASTER) or not one.requires_grad) for one in weights)
    if not ours or biased or weights[0].element_size() != 2 or hasattr(layer, "unshard"):
        return
    if joined(*parts.gate_up) is None:
        join(*parts.gate_up)
