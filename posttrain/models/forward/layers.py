"""Decoder layers of the usual kind as two operations that compute their own backward pass, on a CUDA GPU with Liger.

    q, k, v = rotate(norm(W x))      attention      s = x + W_o a,   y = s + W_down swiglu(W_gate_up norm(s))

Llama, Mistral, Qwen2, Qwen3 and the families with their code are such layers. `fuse_layers` compares a layer's output
with its own forward pass when a model is loaded. All others, and all calls that training does not make, run the
module's own code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from posttrain.measure.record import note, noted
from posttrain.models.device import AMPERE
from posttrain.models.forward import kernels
from posttrain.models.forward.forward import NAME, PackedAttention, Scoring, backbone
from posttrain.models.forward.norms import DTYPES, FusedNorm
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
from posttrain.rollout import TokenRow
from posttrain.text.packing import pack

TOLERANCE = 1e-4
"""Of the check at load, as a share of the largest output in float32."""
FUSED, PLAIN = "fused", "transformers"
"""Values of the record's `layers`."""


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


def _parts(layer: Any) -> _Parts | None:
    """Return a layer's parameters; None if some of its matrices are more than a matrix with a plain adapter."""
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
        kept: list[Any] = []
        if parts.heads is not None:
            kept, normed = [query, key], []
            for part, norm in zip(kept[:], parts.heads, strict=True):
                out, scale = kernels.norm(part.flatten(0, 1), norm.weight, norm.epsilon)
                normed.append(out.view(part.shape))
                kept.append(scale)
            query, key = normed
        kernels.rotate_(query, key, cos_NS, sin_NS)
        lows = [low for _, low in made]
        ctx.save_for_backward(x_ND, y_ND, scale_N, cos_NS, sin_NS, *lows, *kept, *tensors)
        ctx.parts, ctx.kept = parts, len(kept)
        return query, key, value, x_ND.view_as(x_ND)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        x_ND, y_ND, scale_N, cos_NS, sin_NS, *rest = ctx.saved_tensors
        lows, kept, parts, needs = rest[:3], rest[3 : 3 + ctx.kept], ctx.parts, ctx.needs_input_grad[4:]
        query, key, value, residual = (part.contiguous() for part in grads)
        kernels.rotate_(query, key, cos_NS, sin_NS, back=True)
        found: list[Any] = [None] * len(needs)
        slopes = [part.flatten(0, 1) for part in (query, key)]
        for place in range(2 if kept else 0):
            x, scale, weight = kept[place].flatten(0, 1), kept[2 + place], _summed(parts.heads[place].weight)
            slopes[place], found[1 + place] = kernels.norm_backward(
                slopes[place], x, weight, scale, weighed=needs[1 + place]
            )
        total: Tensor | None = None
        flat = [part.view(len(x_ND), -1) for part in (*slopes, value)]
        for place, (slope, matrix) in enumerate(zip(flat, parts.qkv, strict=True)):
            mine = slice(3 + TENSORS * place, 3 + TENSORS * (place + 1))
            total, low = slope_through(slope, matrix, total)
            found[mine] = weight_gradients(slope, y_ND, lows[place], low, matrix, needs[mine])
        assert total is not None
        of_x, found[0] = kernels.add_norm_backward(
            total, residual, x_ND, _summed(parts.before.weight), scale_N, weighed=needs[0]
        )
        return of_x, None, None, None, *found


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
        ctx.save_for_backward(mixed, y_ND, scale_N, sum_ND, both, inner, low_out, *lows, low_down, *tensors)
        ctx.parts = parts
        return whole

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        mixed, y_ND, scale_N, sum_ND, both, inner, low_out, *lows, low_down = ctx.saved_tensors[:10]
        parts, needs, grad = ctx.parts, ctx.needs_input_grad[3:], grads[0].squeeze(0).contiguous()
        found: list[Any] = [None] * len(needs)
        places = [slice(1 + TENSORS * nth, 1 + TENSORS * (nth + 1)) for nth in range(4)]
        out, down = parts.out, parts.down
        of_inner, low = slope_through(grad, down, None)
        found[places[3]] = weight_gradients(grad, inner, low_down, low, down, needs[places[3]])
        of_both = kernels.swiglu_backward(of_inner, both)
        needed = [needs[place] for place in places[1:3]]
        of_y, found[places[1]], found[places[2]] = _gate_up_backward(of_both, y_ND, parts.gate_up, lows, needed)
        of_sum, found[0] = kernels.add_norm_backward(
            of_y, grad, sum_ND, _summed(parts.after.weight), scale_N, weighed=needs[0]
        )
        of_mixed, low = slope_through(of_sum, out, None)
        found[places[0]] = weight_gradients(of_sum, mixed, low_out, low, out, needs[places[0]])
        return of_mixed, of_sum, None, *found


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
    found: list[tuple[Any, ...]] = []
    for place, (slope, matrix) in enumerate(zip(torch.split(grad, width, dim=1), pair, strict=True)):
        if whole is None or total is None:
            total, low = slope_through(slope, matrix, total)
        else:
            total, low = add_adapter_slope_(slope, matrix, total)
        mine = needs[place] if weights[place] is None else (False, *needs[place][1:])
        of_weight, *others = weight_gradients(slope, y_ND, lows[place], low, matrix, mine)
        found.append((weights[place] if of_weight is None else of_weight, *others))
    assert total is not None
    return total, found[0], found[1]


def layer_output(layer: Any, hidden: Tensor, positions: Any, attention: PackedAttention, scoring: Scoring) -> Any:
    """Return the layer's output [1, N, D], computed by this file; None if its parts are not plain matrices.

    Hooks on its modules would not be called here, and the kernels take one dtype.
    """
    if any(part.dtype != hidden.dtype for part in layer.parameters()) or _hooked(layer):
        return None
    parts = _parts(layer)
    if parts is None:
        return None
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
    """Return whether somebody has put a hook on a module within the layer."""
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


class FusedLayer(nn.Module):
    """A mixin for decoder layers of transformers."""

    posttrain_scoring: Scoring

    def forward(self, hidden_states: Tensor, *args: Any, **named: Any) -> Any:
        """Return the output by this file's operations in a packed pass on a CUDA GPU, else by the module's own code."""
        attention, positions = named.get("posttrain_attention"), named.get("position_embeddings")
        if not args and type(attention) is PackedAttention and positions is not None and _takes(hidden_states):
            found = layer_output(self, hidden_states, positions, attention, self.posttrain_scoring)
            if found is not None:
                _record(FUSED)
                return found
        if type(attention) is PackedAttention and hidden_states.is_cuda:
            _record(PLAIN)
        return super().forward(hidden_states, *args, **named)


def _takes(hidden: Tensor) -> bool:
    """Return whether the kernels support this call: not a second derivative (TRPO), and not torch's compiler."""
    if not hidden.is_cuda or hidden.dtype not in DTYPES or hidden.shape[0] != 1 or torch.compiler.is_compiling():
        return False
    return kernels.liger() is not None and bool(torch.backends.cuda.flash_sdp_enabled())  # type: ignore[no-untyped-call]


def _record(layers: str) -> None:
    """Record which code ran the layers of a pass with a gradient."""
    if torch.is_grad_enabled() and noted("layers") != layers:
        note(layers=layers, **({"liger_kernel": kernels.liger_version()} if layers == FUSED else {}))


def plain_forward(layer: Any) -> Callable[..., Any]:
    """Return the forward function of a layer's own class, without the code for `activations`."""
    own: Any = next(kind for kind in type(layer).__mro__ if not issubclass(kind, FusedLayer))
    found: Callable[..., Any] = own.forward.__wrapped__
    return found


def fuse_layers(model: Any) -> None:
    """Let the layers of a model use this file's operations, in place, if a GPU and Liger are there to run them."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < AMPERE or kernels.liger() is None:
        return
    checked: dict[tuple[Any, ...], Scoring | None] = {}
    core = backbone(model)
    for layer in getattr(core, "layers", ()):
        if isinstance(layer, FusedLayer) or not _has_usual_code(layer):
            continue
        kind = _kind(layer)
        if kind not in checked:
            checked[kind] = _checked_scoring(layer, core)
        scoring = checked[kind]
        if scoring is not None:
            own: Any = type(layer)
            layer.__class__ = _fused(own)
            layer.posttrain_scoring = scoring


def _kind(layer: Any) -> tuple[Any, ...]:
    """Return what can make layers of one model differ, beside their tensors."""
    settings = (
        (name, value)
        for part in (layer, layer.self_attn, layer.mlp)
        for name, value in sorted(vars(part).items())
        if name != "layer_idx" and isinstance(value, bool | int | float | str | None)
    )
    return type(layer), *settings


@cache
def _fused(kind: Any) -> Any:
    return type(kind.__name__, (FusedLayer, kind), {"__module__": kind.__module__})


def _has_usual_code(layer: Any) -> bool:
    """Return whether layer, attention and feed-forward have the code of Llama or a family next to it."""
    attention, mlp = getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    norms = [getattr(layer, name, None) for name in ("input_layernorm", "post_attention_layernorm")]
    norms += [getattr(attention, name) for name in ("q_norm", "k_norm") if hasattr(attention, name)]
    if not type(layer).__module__.startswith("transformers.") or not all(isinstance(one, FusedNorm) for one in norms):
        return False
    kinds: Any = (type(layer), type(attention), type(mlp))
    return all(_code(kind) in codes for kind, codes in zip(kinds, _usual_codes(), strict=True))


@cache
def _usual_codes() -> tuple[frozenset[str], ...]:
    """Return the code of the layers, attentions and feed-forwards that this file computes."""
    from transformers.models.llama import modeling_llama as llama
    from transformers.models.mistral import modeling_mistral as mistral
    from transformers.models.qwen2 import modeling_qwen2 as qwen2
    from transformers.models.qwen3 import modeling_qwen3 as qwen3

    kinds: Any = (
        (llama.LlamaDecoderLayer, mistral.MistralDecoderLayer, qwen2.Qwen2DecoderLayer, qwen3.Qwen3DecoderLayer),
        (llama.LlamaAttention, mistral.MistralAttention, qwen2.Qwen2Attention, qwen3.Qwen3Attention),
        (llama.LlamaMLP, mistral.MistralMLP, qwen2.Qwen2MLP, qwen3.Qwen3MLP),
    )
    return tuple(frozenset(map(_code, part)) for part in kinds)


@cache
def _code(kind: Any) -> str:
    return inspect.getsource(kind.forward) if hasattr(kind, "forward") else ""


class _ScoringRecorder(PackedAttention):
    """Packed attention that records how a layer scores its keys."""

    scoring: Scoring | None = None

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        self.scoring = scoring
        return super().attend(layer, query, key, value, scoring)


@torch.no_grad()
def _checked_scoring(layer: Any, core: Any) -> Scoring | None:
    """Return how the layer scores keys; None if this file gives another output than the layer's own code."""
    packed = pack([TokenRow([0], [0, 0, 0]), TokenRow([1], [0])])
    recorder, draw = _ScoringRecorder(packed), torch.Generator().manual_seed(0)
    hidden = torch.randn(1, packed.ids_N.numel(), core.config.hidden_size, generator=draw)
    places, own = packed.positions_N[None], core.config._attn_implementation
    try:
        core.config._attn_implementation = NAME
        positions = core.rotary_emb(hidden, places)
        shared = {"position_ids": places, "position_embeddings": positions, "posttrain_attention": recorder}
        expected = layer(hidden, attention_mask=None, past_key_values=None, use_cache=False, **shared)
        scoring = recorder.scoring
        if scoring is None or not scoring.plain:
            return None
        found = layer_output(layer, hidden, positions, PackedAttention(packed), scoring)
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return None
    finally:
        core.config._attn_implementation = own
    if found is None or not torch.allclose(found, expected, rtol=0, atol=TOLERANCE * float(expected.abs().max())):
        return None
    return scoring
