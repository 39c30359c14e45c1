"""One model in the decoding loop: the rows so far, and the logits of each row's next token.

For common decoder families, a step runs as plain tensor calls, because a small model's step is mostly Python overhead;
on a GPU it can be a CUDA graph. Other models run their own code with our cache, with their own cache, or over whole
rows again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.functional import rms_norm

from posttrain.models.adapters import is_plain, linear_of, merged_weight
from posttrain.models.decoder.kv_cache import CachedAttention, PromptAttention
from posttrain.models.decoder.kv_size import kv_bytes, kv_sizes
from posttrain.models.decoder.layer_parts import Matrix, after_attention, before_attention, compiled_part
from posttrain.models.decoder.paged import PAGE, PagedAttention, batch_rows, own_pages
from posttrain.models.forward.forward import Scoring, has_own_cache, hidden_states, own_states, row_states, runs_in_rows
from posttrain.models.forward.logp import head_of
from posttrain.models.forward.varlen import takes_pages
from posttrain.rollout import token_rows
from posttrain.text.packing import micro_batches, pack, sent

PREFILL_TOKENS = 16_384
"""Maximum number of prompt tokens in one pass."""
DecodingAttention = CachedAttention | PagedAttention
FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose table does not depend on the length."""


@dataclass(frozen=True)
class _Layer:
    before: Tensor
    qkv: Matrix
    head_norms: tuple[Tensor, Tensor] | None
    out: Matrix
    after: Tensor
    gate_up: Matrix
    down: Matrix
    scoring: Scoring


class DecoderStep:
    """Computes the hidden state after one more token of each row. It is built again when the weights have changed."""

    def __init__(self, model: Any, longest: int, *, compiled: bool = False) -> None:
        """`longest`: all positions are below it. `compiled`: run the parts around attention as compiled code."""
        core, config = model.base_model, model.config
        self._embedding, self._norm, self._eps = core.embed_tokens.weight, core.norm.weight, config.rms_norm_eps
        self._kv_heads = config.num_key_value_heads
        self._size = core.layers[0].self_attn.head_dim
        places = torch.arange(longest, device=self._embedding.device)[None]
        cos, sin = core.rotary_emb(self._embedding[:1], places)
        half = self._size // 2
        self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=1)
        with torch.no_grad():
            window = config.sliding_window if type(core).__name__ == "MistralModel" else None
            self._layers = [_layer(layer, window, self._embedding.dtype) for layer in core.layers]
        self._before: Callable[..., tuple[Tensor, Tensor, Tensor]] = before_attention
        self._after: Callable[..., Tensor] = after_attention
        if compiled:
            self._before, self._after = compiled_part(before_attention), compiled_part(after_attention)

    @property
    def takes_pages(self) -> bool:
        """True if one attention kernel can read its keys in pages."""
        return takes_pages(self._embedding.new_empty(0, self._size))

    def __call__(self, token_R: Tensor, position_R: Tensor, cache: DecodingAttention) -> Tensor:
        """Return the last hidden states [R, D] of one token per row."""
        x = self._embedding[token_R]
        turn = self._cos[position_R][:, None], self._sin[position_R][:, None]
        for i, layer in enumerate(self._layers):
            query, key, value = self._before(
                x, layer.before, layer.qkv, layer.head_norms, turn, self._kv_heads, self._eps
            )
            mixed = cache.attend(i, query, key, value, layer.scoring).reshape(x.shape[0], -1)
            x = self._after(x, mixed, layer.out, layer.after, layer.gate_up, layer.down, self._eps)
        return rms_norm(x, x.shape[1:], self._norm, self._eps)


def supports_decoder_step(model: Any) -> bool:
    """Tell whether the model consists only of modules that `DecoderStep` implements."""
    core, config = model.base_model, model.config
    if type(core).__name__ not in FAMILIES or config.hidden_act != "silu":
        return False
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary not in FIXED_ROTARY:
        return False
    return all(
        is_plain(part)
        for layer in core.layers
        for part in (*(getattr(layer.self_attn, f"{n}_proj") for n in "qkvo"), *_mlp(layer))
    )


def _layer(layer: Any, window: int | None, dtype: torch.dtype) -> _Layer:
    attention = layer.self_attn
    normed = hasattr(attention, "q_norm")
    gate, up, down = _mlp(layer)
    return _Layer(
        before=layer.input_layernorm.weight,
        qkv=_concatenated(dtype, attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=(attention.q_norm.weight, attention.k_norm.weight) if normed else None,
        out=_concatenated(dtype, attention.o_proj),
        after=layer.post_attention_layernorm.weight,
        gate_up=_concatenated(dtype, gate, up),
        down=_concatenated(dtype, down),
        scoring=Scoring(attention.scaling, getattr(attention, "sliding_window", window)),
    )


def _mlp(layer: Any) -> tuple[Any, Any, Any]:
    return layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj


def _concatenated(dtype: torch.dtype, *parts: Any) -> Matrix:
    """Return linear layers with the same input as one layer, with adapters merged."""
    weights, biases = [merged_weight(part) for part in parts], [linear_of(part).bias for part in parts]
    weight = torch.cat(weights) if len(parts) > 1 else weights[0]
    return weight.to(dtype), None if biases[0] is None else torch.cat(biases)


DecodeFn = Callable[[Tensor, Tensor], Tensor]
"""(token_R, position_R) -> the last hidden states [R, D]."""


class CudaGraph:
    """A captured step with its input and output tensors. Each call overwrites the previous result."""

    def __init__(self, step: DecodeFn, token_R: Tensor, position_R: Tensor, size: int) -> None:
        """`size`: the number of rows of the step. Empty rows have a token too."""
        self._token_R, self._position_R = token_R.new_zeros(size), position_R.new_zeros(size)
        self._read(token_R, position_R)
        warmup = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warmup.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warmup):  # what a first call sets up must not be captured
            step(self._token_R, self._position_R)
        torch.cuda.current_stream().wait_stream(warmup)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._states_R = step(self._token_R, self._position_R)

    def __call__(self, token_R: Tensor, position_R: Tensor) -> Tensor:
        self._read(token_R, position_R)
        self._graph.replay()
        return self._states_R[: token_R.numel()]

    def _read(self, token_R: Tensor, position_R: Tensor) -> None:
        self._token_R[: token_R.numel()].copy_(token_R)
        self._position_R[: token_R.numel()].copy_(position_R)


class DecoderBackend(Protocol):
    """A model that decodes rows. Rows may leave and join between steps."""

    def admit(self, kept: Sequence[int], fresh: Sequence[Sequence[int]], joining: Sequence[int]) -> None:
        """Keep these prompts and prefill fresh prompts. `joining`: each new row's index in [*kept, *fresh] prompts."""

    def keep_rows(self, index_R: Tensor) -> None:
        """Drop all other rows. Call it before the remaining rows get their next token."""

    def next_logits(self) -> Tensor:
        """Return the logits of the next token [R, V], in float32 or higher precision."""

    def append_tokens(self, token_R: Tensor, position_R: Tensor) -> None:
        """Append the chosen token of each row."""

    def kv_bytes(self) -> tuple[int, int]:
        """Return the bytes of keys and values per prompt token, and the maximum for a row's own tokens."""
        ...


def backend_of(
    model: Any, longest_prompt: int, max_new_tokens: int, *, cuda_graphs: bool = False, compiled: bool = False
) -> DecoderBackend:
    """Return the fastest backend that can run the model. `cuda_graphs`: use them if the model permits.

    `compiled`: compile the captured step.
    """
    if runs_in_rows(model):
        return OwnCacheDecoder(model) if has_own_cache(model) else RecomputeDecoder(model)
    return CachedDecoder(model, longest_prompt, max_new_tokens, cuda_graphs=cuda_graphs, compiled=compiled)


@dataclass
class _SameLength:
    """Rows of equal length in one cache of the model's own."""

    cache: Any
    slots_G: Tensor


class OwnCacheDecoder:
    """A model with its own cache, e.g. recurrent states. Rows of equal length share a cache, so nothing is padded."""

    def __init__(self, model: Any) -> None:
        head = head_of(model)
        self._model, self._head, self._device = model, head, head.weight_VD.device
        self._prompts: list[list[int]] = []
        self._groups: list[_SameLength] = []
        self._states_R: Tensor | None = None

    def admit(self, kept: Sequence[int], fresh: Sequence[Sequence[int]], joining: Sequence[int]) -> None:
        self._prompts = [self._prompts[place] for place in kept] + [list(prompt) for prompt in fresh]
        first = 0 if self._states_R is None else len(self._states_R)
        new: dict[int, Tensor] = {}
        for length in dict.fromkeys(len(self._prompts[place]) for place in joining):
            slots = [slot for slot, place in enumerate(joining) if len(self._prompts[place]) == length]
            unique = list(dict.fromkeys(joining[slot] for slot in slots))
            ids_PT = torch.tensor([self._prompts[place] for place in unique], device=self._device)
            states_PTD, cache = own_states(self._model, ids_PT, None)
            rows_G = torch.tensor([unique.index(joining[slot]) for slot in slots], device=self._device)
            cache.reorder_cache(rows_G)
            self._groups.append(_SameLength(cache, torch.tensor(slots, device=self._device) + first))
            new |= dict(zip(slots, states_PTD[rows_G, -1], strict=True))
        parts = [] if self._states_R is None else [self._states_R]
        parts += [torch.stack([new[slot] for slot in range(len(joining))])] if new else []
        self._states_R = torch.cat(parts) if parts else None

    def keep_rows(self, index_R: Tensor) -> None:
        assert self._states_R is not None, "no row has been admitted"
        place_R = torch.full((len(self._states_R),), -1, device=self._device)
        place_R[index_R] = torch.arange(len(index_R), device=self._device)
        self._states_R = self._states_R[index_R]
        for group in self._groups:
            place_G = place_R[group.slots_G]
            if bool((place_G < 0).any()):
                group.cache.reorder_cache((place_G >= 0).nonzero().squeeze(1))
            group.slots_G = place_G[place_G >= 0]
        self._groups = [group for group in self._groups if len(group.slots_G)]

    def next_logits(self) -> Tensor:
        assert self._states_R is not None, "no row has been admitted"
        return self._head.logits(self._states_R.to(self._head.weight_VD.dtype))

    def append_tokens(self, token_R: Tensor, position_R: Tensor) -> None:  # noqa: ARG002
        assert self._states_R is not None, "no row has been admitted"
        for group in self._groups:
            states_GTD, group.cache = own_states(self._model, token_R[group.slots_G][:, None], group.cache)
            self._states_R[group.slots_G] = states_GTD[:, -1]

    def kv_bytes(self) -> tuple[int, int]:
        return 0, 0


class RecomputeDecoder:
    """A model without a cache. Each row is recomputed for every token."""

    def __init__(self, model: Any) -> None:
        head = head_of(model)
        self._model, self._head, self._device = model, head, head.weight_VD.device
        self._prompts: list[list[int]] = []
        self._rows: list[list[int]] = []

    def admit(self, kept: Sequence[int], fresh: Sequence[Sequence[int]], joining: Sequence[int]) -> None:
        self._prompts = [self._prompts[place] for place in kept] + [list(prompt) for prompt in fresh]
        self._rows += [[*self._prompts[place]] for place in joining]

    def keep_rows(self, index_R: Tensor) -> None:
        self._rows = [self._rows[place] for place in index_R.tolist()]

    def next_logits(self) -> Tensor:
        lengths_R = torch.tensor([len(row) for row in self._rows], device=self._device)
        ids_RT = torch.zeros(len(self._rows), int(lengths_R.max()), dtype=torch.long)
        for place, row in enumerate(self._rows):
            ids_RT[place, : len(row)] = torch.tensor(row)
        states = row_states(self._model, sent(ids_RT, self._device))
        last = states[torch.arange(len(self._rows), device=self._device), lengths_R - 1]
        return self._head.logits(last.to(self._head.weight_VD.dtype))

    def append_tokens(self, token_R: Tensor, position_R: Tensor) -> None:  # noqa: ARG002
        for row, token in zip(self._rows, token_R.tolist(), strict=True):
            row.append(token)

    def kv_bytes(self) -> tuple[int, int]:
        return 0, 0


class CachedDecoder:
    """A model with our cache, and the last hidden state of each row."""

    def __init__(
        self, model: Any, longest_prompt: int, max_new_tokens: int, *, cuda_graphs: bool, compiled: bool = False
    ) -> None:
        head = head_of(model)
        self._model, self._head = model, head
        self._device = head.weight_VD.device
        longest = longest_prompt + max_new_tokens
        self._step = DecoderStep(model, longest) if supports_decoder_step(model) else None
        paged = cuda_graphs and self._step is not None and self._step.takes_pages
        if paged and compiled:
            self._step = DecoderStep(model, longest, compiled=True)
        self._cache: DecodingAttention = (
            PagedAttention(longest_prompt, max_new_tokens, self._device)
            if paged
            else CachedAttention(max_new_tokens, self._device)
        )
        self._max_new_tokens = max_new_tokens
        self._prompt_states: Tensor | None = None
        self._states_R: Tensor | None = None

    def admit(self, kept: Sequence[int], fresh: Sequence[Sequence[int]], joining: Sequence[int]) -> None:
        kept_P, joining_R = (torch.tensor(places, dtype=torch.long, device=self._device) for places in (kept, joining))
        passes = micro_batches([len(ids) for ids in fresh], range(len(fresh)), PREFILL_TOKENS) or [[]]
        for part in passes:
            attention, new = self._prefill([fresh[place] for place in part]) if part else (None, [])
            states = torch.cat([*([] if self._prompt_states is None else [self._prompt_states[kept_P]]), *new])
            self._cache.admit(kept_P, attention, joining_R if part is passes[-1] else joining_R[:0])
            self._prompt_states, kept_P = states, torch.arange(len(states), device=self._device)
        new_R = states[joining_R]
        self._states_R = new_R if self._states_R is None else torch.cat([self._states_R, new_R])

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[PromptAttention, list[Tensor]]:
        """Return the prompts' keys and values, and their last hidden states."""
        packed = pack(token_rows(prompts, [[]] * len(prompts))).to(self._device)
        attention = PromptAttention(packed)
        every = hidden_states(self._model, packed.ids_N[None], packed.positions_N[None], attention)[0]
        return attention, [every[packed.last_B]]

    def keep_rows(self, index_R: Tensor) -> None:
        self._cache.keep_rows(index_R)
        self._states_R = None if self._states_R is None else self._states_R[index_R]

    def next_logits(self) -> Tensor:
        assert self._states_R is not None, "no row has been admitted"
        return self._head.logits(self._states_R.to(self._head.weight_VD.dtype))

    def append_tokens(self, token_R: Tensor, position_R: Tensor) -> None:
        self._cache.step()
        if self._step is None:
            self._states_R = hidden_states(self._model, token_R[:, None], position_R[:, None], self._cache)[:, 0]
        elif isinstance(self._cache, PagedAttention):
            self._states_R = self._captured(self._cache, token_R, position_R)
        else:
            self._states_R = self._step(token_R, position_R, self._cache)

    def kv_bytes(self) -> tuple[int, int]:
        token, row = kv_bytes(kv_sizes(self._model), self._head.weight_VD.element_size(), self._max_new_tokens)
        if isinstance(self._cache, PagedAttention):  # its prompt takes up to a page more
            row = token * PAGE * (own_pages(self._max_new_tokens) + 1)
        return token, row

    def _captured(self, cache: PagedAttention, token_R: Tensor, position_R: Tensor) -> Tensor:
        """Return the hidden states, computed by the graph for this number of rows."""
        step = self._step
        assert step is not None

        def located(token_R: Tensor, position_R: Tensor) -> Tensor:
            cache.locate(position_R)
            return step(token_R, position_R, cache)

        size = batch_rows(token_R.numel())
        if size not in cache.graphs:
            cache.graphs[size] = CudaGraph(located, token_R, position_R, size)
        return cache.graphs[size](token_R, position_R)
