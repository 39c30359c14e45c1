"""One decoding step of the common decoder families in bare tensor calls: a small model's step is mostly Python.

The weights are those of the model, its projections laid side by side. A model whose parts are not exactly the known
ones is decoded by its own code instead.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, rms_norm, silu

from posttrain.models.attention import Scoring
from posttrain.models.kv_cache import CachedAttention

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
FIXED_ROTARY = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary positions whose table does not change with the length."""


@dataclass(frozen=True)
class _Layer:
    before: Tensor
    qkv: tuple[Tensor, Tensor | None]
    head_norms: tuple[Tensor, Tensor] | None
    out: tuple[Tensor, Tensor | None]
    after: Tensor
    gate_up: tuple[Tensor, Tensor | None]
    down: tuple[Tensor, Tensor | None]
    scoring: Scoring


class DecoderStep:
    """The hidden state after one more token of each row; made anew whenever the weights have changed."""

    def __init__(self, model: Any, longest: int) -> None:
        """`longest`: positions are below it."""
        core, config = model.base_model, model.config
        self._embedding, self._norm, self._eps = core.embed_tokens.weight, core.norm.weight, config.rms_norm_eps
        self._heads, self._kv_heads = config.num_attention_heads, config.num_key_value_heads
        self._size = core.layers[0].self_attn.head_dim
        places = torch.arange(longest, device=self._embedding.device)[None]
        cos, sin = core.rotary_emb(self._embedding[:1], places)
        half = self._size // 2
        self._cos, self._sin = cos[0], torch.cat([-sin[0, :, :half], sin[0, :, half:]], dim=1)
        with torch.no_grad():
            everywhere = config.sliding_window if type(core).__name__ == "MistralModel" else None
            self._layers = [_layer(layer, everywhere) for layer in core.layers]

    @property
    def windowless(self) -> bool:
        """Whether every layer sees all that went before."""
        return all(layer.scoring.window is None for layer in self._layers)

    def __call__(self, token_R: Tensor, position_R: Tensor, cache: CachedAttention) -> Tensor:
        """The last hidden states [R, D] of one token a row."""
        x = self._embedding[token_R]
        width, eps = x.shape[1:], self._eps
        cos, sin = self._cos[position_R][:, None], self._sin[position_R][:, None]
        for i, layer in enumerate(self._layers):
            query, key, value = self._attended(
                linear(rms_norm(x, width, layer.before, eps), *layer.qkv), layer, cos, sin
            )
            mixed = cache.attend(i, query, key, value, layer.scoring).reshape(x.shape[0], -1)
            x = x + linear(mixed, *layer.out)
            gate, up = linear(rms_norm(x, width, layer.after, eps), *layer.gate_up).chunk(2, dim=1)
            x = x + linear(silu(gate) * up, *layer.down)
        return rms_norm(x, width, self._norm, eps)

    def _attended(self, qkv: Tensor, layer: _Layer, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys, values [R, H, 1, D] with their positions turned in."""
        heads, turned = self._heads, self._heads + self._kv_heads
        split = qkv.view(-1, turned + self._kv_heads, self._size)
        both = split[:, :turned]
        if layer.head_norms is not None:
            parts = (split[:, :heads], split[:, heads:turned])
            normed = [
                rms_norm(part.to(w.dtype), (self._size,), w, self._eps)
                for part, w in zip(parts, layer.head_norms, strict=True)
            ]
            both = torch.cat(normed, dim=1)
        both = torch.addcmul(both * cos, both.roll(self._size // 2, -1), sin)[:, :, None]
        return both[:, :heads], both[:, heads:], split[:, turned:, None]


def fits(model: Any) -> bool:
    """Whether the model is made of exactly the parts that `DecoderStep` knows."""
    core, config = model.base_model, model.config
    if type(core).__name__ not in FAMILIES or config.hidden_act != "silu":
        return False
    rotary = (getattr(config, "rope_parameters", None) or {}).get("rope_type", "default")
    if rotary not in FIXED_ROTARY:
        return False
    return all(
        type(part) is nn.Linear
        for layer in core.layers
        for part in (*(getattr(layer.self_attn, f"{n}_proj") for n in "qkvo"), *_mlp(layer))
    )


def _layer(layer: Any, window: int | None) -> _Layer:
    attention = layer.self_attn
    normed = hasattr(attention, "q_norm")
    gate, up, down = _mlp(layer)
    return _Layer(
        before=layer.input_layernorm.weight,
        qkv=_side_by_side(attention.q_proj, attention.k_proj, attention.v_proj),
        head_norms=(attention.q_norm.weight, attention.k_norm.weight) if normed else None,
        out=_side_by_side(attention.o_proj),
        after=layer.post_attention_layernorm.weight,
        gate_up=_side_by_side(gate, up),
        down=_side_by_side(down),
        scoring=Scoring(attention.scaling, getattr(attention, "sliding_window", window)),
    )


def _mlp(layer: Any) -> tuple[Any, Any, Any]:
    return layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj


def _side_by_side(*parts: Any) -> tuple[Tensor, Tensor | None]:
    """Linear maps of one input as one, in the precision of the products."""
    weights, biases = [part.weight for part in parts], [part.bias for part in parts]
    weight = torch.cat(weights) if len(parts) > 1 else weights[0]
    return in_use(weight), None if biases[0] is None else in_use(torch.cat(biases))


def in_use(weight: Tensor) -> Tensor:
    """The weight in the precision that autocast, where it is on, would give it in every product anew."""
    kind = weight.device.type
    return weight.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else weight
