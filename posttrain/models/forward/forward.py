"""The forward passes for training and decoding, and the attention function that they use.

transformers' models look up their attention by name and pass extra keyword arguments to it. `posttrain` is registered
once. Training passes a packed batch, decoding a cache, and the model's own code is unchanged.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from inspect import signature
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention

from posttrain.errors import ModelError
from posttrain.models.device import HEAD_STEP
from posttrain.models.forward.logp import AnyHead, head_of, token_logp
from posttrain.models.forward.traced import TRACED, TracedAttention, traced_of
from posttrain.models.forward.varlen import Segments, attend_segments, segments_of, supports
from posttrain.models.master_weights import MASTER, gradient_of
from posttrain.text.packing import PackedRows

NAME = "posttrain"
QUERY_BLOCK = 256
"""Queries of a row that share a mask, if one is needed. A longer window uses blocks of its own length."""


@dataclass(frozen=True)
class Scoring:
    """The parameters of attention scores: scale, sliding window, soft cap, and a sink for each head."""

    scale: float
    window: int | None = None
    cap: float | None = None
    sink_H: Tensor | None = None

    @property
    def plain(self) -> bool:
        """Tell whether torch's scaled_dot_product_attention can compute this attention."""
        return self.cap is None and self.sink_H is None

    def capped(self, scores: Tensor) -> Tensor:
        """Return the soft-capped scores, before masking."""
        return scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)

    def weights(self, scores: Tensor) -> Tensor:
        """Return the softmax over the keys [.., H, Q, T], in float32 or higher.

        Sinks absorb attention but add no value.
        """
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        if self.sink_H is None:
            return scores.softmax(-1)
        sink = self.sink_H.to(scores.dtype)[:, None, None].expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sink], dim=-1).softmax(-1)[..., :-1]


class Attention(Protocol):
    """Attention between tokens: [1|B, H, N, D] queries, keys, values -> [1|B, N, H, D]."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor: ...


class PackedAttention:
    """Causal attention within each row of a packed batch."""

    decodes: ClassVar[bool] = False
    """True if its keys are those of a decoder, which has one kernel for all passes."""

    def __init__(self, packed: PackedRows) -> None:
        self._packed = packed
        self._traced: TracedAttention | None = None

    def trace(self) -> None:
        """Prepare for compiled layers that trace attention."""
        self._traced = traced_of(self._segments, self._packed.ids_N.numel(), self._packed.ids_N.device)

    @cached_property
    def _segments(self) -> Segments:
        return segments_of(self._packed)

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Pad rows side by side, attend causally, and put each token's output back in its packed place."""
        del layer
        query_N, key_N, value_N = (part.squeeze(0).transpose(0, 1) for part in (query, key, value))
        if torch.compiler.is_compiling() and self._traced is not None:
            return self._traced.attend(query_N, key_N, value_N, scoring.scale, scoring.window).unsqueeze(0)
        if scoring.plain and supports(query, value):
            out = attend_segments(
                query_N, key_N, value_N, self._segments, scoring.scale, scoring.window, decodes=self.decodes
            )
            return out.unsqueeze(0)
        outputs = []
        gathers, take_N = self._packed.gathered
        for gather in gathers:
            out = _causal(_rows(query_N, gather), _rows(key_N, gather), _rows(value_N, gather), scoring)
            outputs.append(out.transpose(1, 2).flatten(0, 1))
        return torch.cat(outputs).index_select(0, take_N)[None]


def _causal(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
    """Return causal attention: [S, H, T, D] queries with [S, K, T, D] keys and values -> [S, H, T, D]."""
    width, window = query.shape[2], scoring.window or query.shape[2]
    if scoring.plain and width <= window:
        return _scaled_dot_products(query, key, value, scoring.scale, None)
    size = max(QUERY_BLOCK, scoring.window or 0)
    blocks = []
    for start in range(0, width, size):
        end, low = min(start + size, width), max(0, start - window + 1)
        seen = _band(start, end, low, window, query.device)
        blocks.append(_masked(query[:, :, start:end], key[:, :, low:end], value[:, :, low:end], seen, scoring))
    return torch.cat(blocks, dim=2)


def _masked(query: Tensor, key: Tensor, value: Tensor, seen: Tensor, scoring: Scoring) -> Tensor:
    """Return attention of [S, H, Q, D] queries to the `seen` ones of [S, K, T, D] keys and values -> [S, H, Q, D]."""
    if scoring.plain:
        return _scaled_dot_products(query, key, value, scoring.scale, seen)
    key, value = (part.repeat_interleave(query.shape[1] // key.shape[1], 1) for part in (key, value))
    scores = scoring.capped(query @ key.transpose(2, 3) * scoring.scale)
    return scoring.weights(scores.masked_fill(~seen, -torch.inf)).to(value.dtype) @ value


def _scaled_dot_products(query: Tensor, key: Tensor, value: Tensor, scale: float, seen: Tensor | None) -> Tensor:
    """Return torch's attention; causal unless `seen` gives each query's mask.

    A GPU's kernels need equal numbers of query and key heads, with sizes that are multiples of 8, at least in float32.
    For other heads, torch would compute in parts that store all scores.
    """
    gqa, size = query.shape[1] != key.shape[1], value.shape[-1]
    if query.is_cuda:
        key, value = (
            part.repeat_interleave(query.shape[1] // key.shape[1], 1) if gqa else part for part in (key, value)
        )
        query, key, value = (pad(part, (0, -part.shape[-1] % HEAD_STEP)) for part in (query, key, value))
    causal, gqa = seen is None, gqa and not query.is_cuda
    out = scaled_dot_product_attention(query, key, value, seen, 0.0, is_causal=causal, scale=scale, enable_gqa=gqa)
    return out[..., :size]


def _rows(part_N: Tensor, gather: Tensor) -> Tensor:
    """Return [N, H, D] gathered as [S, H, T, D]."""
    rows, width = gather.shape
    return part_N.index_select(0, gather.flatten()).view(rows, width, *part_N.shape[1:]).transpose(1, 2)


def _band(start: int, end: int, low: int, window: int, device: torch.device) -> Tensor:
    """Return which of the keys [low, end) each query of [start, end) sees: itself and the window - 1 before it."""
    query_Q1 = torch.arange(start, end, device=device)[:, None]
    key_T = torch.arange(low, end, device=device)
    return (key_T <= query_Q1) & (key_T > query_Q1 - window)


def _attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    posttrain_attention: Attention | None = None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Return the attention output. transformers calls this in each layer."""
    del attention_mask
    where = f"layer {getattr(module, 'layer_idx', '?')} of {type(module).__name__}"
    if posttrain_attention is None:
        raise ModelError(
            what="called without `posttrain_attention`",
            where=where,
            fix="Call it through posttrain.models.forward.forward",
        )
    scale = scaling if scaling is not None else query.shape[-1] ** -0.5
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    query, key = query.to(value.dtype), key.to(value.dtype)  # some families compute them in float32
    return posttrain_attention.attend(layer, query, key, value, Scoring(scale, sliding_window, softcap, s_aux)), None


def register() -> str:
    """Register our attention with transformers. Return its name."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, _attention)
    return NAME


@contextmanager
def attention_uncompiled() -> Iterator[None]:
    """Exclude attention from torch's compiler within the context. The surrounding code is compiled."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(NAME, torch.compiler.disable(_attention))  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        register()


def backbone(model: Any) -> Any:
    """Return the model below its head."""
    return model.model if model.base_model is model else model.base_model


def hidden_states(
    model: Any, ids: Tensor, positions: Tensor, attention: Attention, embedded: Tensor | None = None
) -> Tensor:
    """Return the last hidden states [B, N, D] of ids [B, N], or of their embeddings [B, N, D] if given."""
    name = backbone(model).config.get_text_config()._attn_implementation
    if name != NAME:  # it would not look at `posttrain_attention`: rows of a packed batch would see each other
        what, fix = f"its attention is {name!r}, not {NAME!r}", f"Call model.set_attn_implementation({NAME!r})"
        raise ModelError(what=what, where=type(model).__name__, fix=fix)
    inputs = {"input_ids": ids} if embedded is None else {"inputs_embeds": embedded}
    output = backbone(model)(**inputs, position_ids=positions, posttrain_attention=attention, use_cache=False)
    states: Tensor = output.last_hidden_state
    return states


def run_in_rows(model: Any) -> None:
    """Use the model's own attention over padded rows from now on, for families that do not support packing."""
    try:
        model.set_attn_implementation("sdpa")
    except ValueError:  # raised by a model without SDPA
        model.set_attn_implementation("eager")
    model.runs_in_rows = True


def runs_in_rows(model: Any) -> bool:
    """Tell whether the model does not support packing."""
    return getattr(model, "runs_in_rows", False)


def has_own_cache(model: Any) -> bool:
    """Tell whether a model that runs in rows decodes from its own cache."""
    return getattr(model, "has_own_cache", False)


def own_states(model: Any, ids_ST: Tensor, cache: Any | None) -> tuple[Tensor, Any]:
    """Return the last hidden states [S, T, D] of rows' next tokens, and the model's own updated cache."""
    core = backbone(model)
    name = "cache_params" if "cache_params" in signature(core.forward).parameters else "past_key_values"
    output = core(input_ids=ids_ST, use_cache=True, **({} if cache is None else {name: cache}))
    return output.last_hidden_state, output[name]


def row_states(model: Any, ids_ST: Tensor) -> Tensor:
    """Return the last hidden states [S, T, D] of rows padded on the right. A causal model does not see the padding."""
    states: Tensor = backbone(model)(input_ids=ids_ST, use_cache=False).last_hidden_state
    return states


def packed_states(model: Any, packed: PackedRows, embedded_ND: Tensor | None = None) -> Tensor:
    """Return the last hidden states [N, D] of a packed batch."""
    if runs_in_rows(model):
        gathers, take_N = packed.gathered
        rows = [row_states(model, packed.ids_N[gather]).flatten(0, 1) for gather in gathers]
        return torch.cat(rows).index_select(0, take_N)
    table = model.get_input_embeddings()
    if embedded_ND is None and type(table) is nn.Embedding and hasattr(table.weight, MASTER):
        embedded_ND = _Rows.apply(table.weight, packed.ids_N, table.padding_idx)  # type: ignore[no-untyped-call]
    embedded, attention = None if embedded_ND is None else embedded_ND[None], PackedAttention(packed)
    if TRACED:
        attention.trace()
    return hidden_states(model, packed.ids_N[None], packed.positions_N[None], attention, embedded)[0]


class _Rows(torch.autograd.Function):
    """A table lookup in bf16 whose gradient is summed over tokens in float32. torch would sum it in bf16."""

    @staticmethod
    def forward(ctx: Any, table_VD: Tensor, ids_N: Tensor, padding: int | None) -> Tensor:
        ctx.save_for_backward(ids_N)
        ctx.rows, ctx.padding = table_VD.shape[0], padding
        return table_VD.index_select(0, ids_N)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (ids_N,), grad_ND = ctx.saved_tensors, grads[0].float()
        total_VD = grad_ND.new_zeros(ctx.rows, grad_ND.shape[1]).index_add_(0, ids_N, grad_ND)
        if ctx.padding is not None:
            total_VD[ctx.padding] = 0
        return total_VD, None, None


def embedded_leaf(model: Any, packed: PackedRows) -> Tensor | None:
    """Return the tokens' embeddings [N, D] as a leaf, so that their gradient needs no second vocabulary matrix.

    Return None if the embedding is not trained or is more than a table, or if the model runs in rows.
    """
    table = model.get_input_embeddings()
    if runs_in_rows(model) or type(table) is not nn.Embedding or not table.weight.requires_grad:
        return None
    return table.weight.detach().index_select(0, packed.ids_N).requires_grad_()


@torch.no_grad()
def add_embedding_gradient(model: Any, packed: PackedRows, embedded_ND: Tensor) -> None:
    """Add the gradient of `embedded_leaf` to the embedding's gradient, as its backward pass would."""
    table = model.get_input_embeddings()
    grad_ND = embedded_ND.grad
    if grad_ND is None:
        return
    if table.padding_idx is not None:
        grad_ND = grad_ND.masked_fill((packed.ids_N == table.padding_idx)[:, None], 0)
    total_VD = gradient_of(table.weight)
    total_VD.index_add_(0, packed.ids_N, grad_ND.to(total_VD.dtype))


def score_tokens(
    model: Any, packed: PackedRows, temperature: float = 1.0, head: AnyHead | None = None, *, entropy: bool = True
) -> tuple[Tensor, Tensor]:
    """Return (log-prob [M], entropy [M] or NaN) of the trained tokens. `head`: the model's head by default."""
    states_ND = packed_states(model, packed)
    hidden_MD = states_ND.index_select(0, packed.source_M)
    return token_logp(hidden_MD, head or head_of(model), packed.target_M, temperature, packed.kept, entropy=entropy)


def score_rows(model: Any, packed: PackedRows) -> Tensor:
    """Return the scalar head's score [B] of each row, at its last token."""
    states_ND = packed_states(model, packed)
    return _scalars(model.score(states_ND.index_select(0, packed.last_B)))


def value_tokens(model: Any, packed: PackedRows) -> Tensor:
    """Return the scalar head's value [M] of the state before each completion token, on the rewards' scale."""
    states_ND = packed_states(model, packed)
    values_M = _scalars(model.score(states_ND.index_select(0, packed.source_M)))
    shift = getattr(model.config, "reward_shift", 0.0)  # of a reward model that was centred
    return values_M - shift if shift else values_M


def _scalars(column: Tensor) -> Tensor:
    """Return [M, 1] as [M] in float32 or higher precision, in its own memory."""
    return column.squeeze(-1).to(torch.promote_types(column.dtype, torch.float32), copy=True)
