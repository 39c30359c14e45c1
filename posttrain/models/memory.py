"""The memory of a model's passes, from its shape. No weights are needed (meta device)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from posttrain.models.adapters import adapted_layers, adapter_of, linear_of
from posttrain.models.decoder.kv_size import kv_bytes, kv_sizes
from posttrain.models.decoder.step import PREFILL_TOKENS, supports_decoder_step
from posttrain.models.forward.activations import Activations
from posttrain.models.forward.norms import has_fused_norms
from posttrain.models.master_weights import master_of
from posttrain.models.nf4 import Nf4Linear
from posttrain.models.sharding import is_divided

LAYER_BYTES = {False: (24, 16, 12, 8, 8), True: (16, 8, 6, 4, 6)}
"""Bytes that a layer saves per token for the backward pass, in float32 and in bf16, per unit of the hidden size D,
the feed-forward width F, all heads A and all key-value heads K, and of A + K if queries and keys are normed.
Measured on gated feed-forward layers; others save less."""
FUSED_BYTES = {False: (8, 4), True: (8, 4)}
"""Bytes saved by norms of one operation, per unit of D, and of A + K."""
NORM_BYTES = {False: 4, True: 2}
"""The part of these bytes for results of a norm of several operations, which its weight's gradient needs."""
INPUT_BYTES = {False: 4, True: 2}
"""Bytes per token and unit of D for a layer's input."""
PRODUCT_BYTES = {False: (12, 8, 8, 8), True: (6, 4, 4, 4)}
"""Bytes per token for a layer's input and the results of its products and attention, per unit of D, F, A and K."""
OUTPUT_BYTES = {False: 8, True: 6}
"""Bytes per token and unit of D that a pass saves after the layers: their output, and its norm."""
PREFILL_BYTES = {False: (18, 12, 12), True: (9, 6, 6)}
"""Bytes per prompt token that a layer needs without gradients: per unit of D, and then of F or of A + K."""
DRAW_BYTES = 16
"""Bytes per row and vocabulary token in a decoding step: logits, their softmax, and its sum in float64."""
TOP_K_BYTES, TOP_P_BYTES = 20, 33
"""The same if only the likeliest tokens are drawn: a copy for top_k, and a sort of all tokens for top_p without it."""


def byte_count(parts: Iterable[Tensor]) -> int:
    """Return the total size of tensors, counting shared tensors once."""
    places = {_place(part): part for part in parts}
    return sum(part.nbytes for part in places.values())


def _place(part: Tensor) -> tuple[int, ...]:
    if is_divided(part):  # its size is that of all processes' rows
        return (id(part),)
    return (part.untyped_storage()._cdata, part.storage_offset(), *part.shape)


def gathered_bytes(model: Any, *, bf16: bool) -> float:
    """Return the bytes of a sharded model that one process holds unsharded at a time.

    These are the weights outside the layers, and two layers, because the next one is gathered ahead. If they are
    trained, add the gradients of the same without one layer.
    """
    from transformers.modeling_layers import GradientCheckpointingLayer

    parts = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    layers = [sum(parameter.numel() for parameter in part.parameters()) for part in parts]
    rest = sum(parameter.numel() for parameter in model.parameters()) - sum(layers)
    trained = any(part.requires_grad for part in model.parameters())
    weights, gradients = rest + 2 * max(layers, default=0), trained * (rest + max(layers, default=0))
    return float((2 if bf16 else 4) * (weights + gradients))


def master_bytes(model: Any) -> int:
    """Return the bytes of the float32 masters of the bf16 weights."""
    return byte_count(master_of(part) for part in model.parameters() if master_of(part) is not part)


def vocabulary(model: Any) -> int:
    """Return the vocabulary size of the model."""
    return int(model.config.get_text_config().vocab_size)


@dataclass(frozen=True)
class _Widths:
    """D, F, A and K of a layer."""

    hidden: int
    forward: int
    heads: int
    keys: int


def _widths(model: Any) -> _Widths:
    """Return the feed-forward width per token; for a mixture of experts, of all experts of a token together."""
    config = model.config.get_text_config()
    hidden, count = int(config.hidden_size), getattr(config, "num_attention_heads", None) or 1  # state space: no heads
    head = getattr(config, "head_dim", None) or hidden // count
    width = getattr(config, "intermediate_size", None) or 4 * hidden
    experts = getattr(config, "num_experts_per_tok", None) or 0
    expert_width = getattr(config, "moe_intermediate_size", None) or width
    keys = getattr(config, "num_key_value_heads", None) or count
    return _Widths(hidden, int(max(width, experts * expert_width)), int(head * count), int(head * keys))


def layer_bytes(model: Any, *, bf16: bool) -> int:
    """Return the bytes of activations per token that a layer saves for the backward pass."""
    width, (by_hidden, by_forward, by_heads, by_keys, by_norm) = _widths(model), LAYER_BYTES[bf16]
    normed = any(name.endswith(("q_norm", "q_layernorm")) for name, _ in model.named_modules())
    if has_fused_norms(model):
        less_hidden, less_norm = FUSED_BYTES[bf16]
        by_hidden, by_norm = by_hidden - less_hidden, by_norm - less_norm
    elif adapter_of(model) is not None:  # the gradient of a frozen norm would need its input
        by_hidden, by_norm = by_hidden - 2 * NORM_BYTES[bf16], by_norm - NORM_BYTES[bf16]
    layer = by_hidden * width.hidden + by_forward * width.forward + by_heads * width.heads + by_keys * width.keys
    return layer + by_norm * (width.heads + width.keys) * normed + _adapter_bytes(model, bf16=bf16)


def product_bytes(model: Any, *, bf16: bool) -> int:
    """Return the bytes per token of a layer's input and of the results of its products and attention."""
    width, (by_hidden, by_forward, by_heads, by_keys) = _widths(model), PRODUCT_BYTES[bf16]
    layer = by_hidden * width.hidden + by_forward * width.forward + by_heads * width.heads + by_keys * width.keys
    return layer + _adapter_bytes(model, bf16=bf16)


def _adapter_bytes(model: Any, *, bf16: bool) -> int:
    """Return the bytes per token that a layer's adapters save: the outputs of their first matrices."""
    matrices = [part for _, layer in adapted_layers(model) for part in layer.lora_A.values()]
    ranks = sum(len(getattr(part, "weight", part)) for part in matrices)
    return (2 if bf16 else 4) * ranks // int(model.config.get_text_config().num_hidden_layers)


def waiting_bytes(model: Any, activations: Activations, *, bf16: bool) -> int:
    """Return the bytes of activations per token that are stored for the backward pass."""
    layers, width = int(model.config.get_text_config().num_hidden_layers), _widths(model).hidden
    inputs = INPUT_BYTES[bf16] * width
    bytes_by = {
        "keep": layers * layer_bytes(model, bf16=bf16),
        "selective": layers * product_bytes(model, bf16=bf16),
        "recompute": layers * inputs,
        "offload": 2 * inputs,
    }
    return bytes_by[activations] + OUTPUT_BYTES[bf16] * width


def draw_bytes(top_p: float, top_k: int | None) -> int:
    """Return the bytes per row and vocabulary token of a decoding step with these sampling settings."""
    if top_k is not None:
        return TOP_K_BYTES
    return DRAW_BYTES if top_p == 1 else TOP_P_BYTES


def decoding_bytes(
    model: Any, rows: int, prompts: int, prompt: int, most: int, *, bf16: bool, draw: int = DRAW_BYTES
) -> tuple[float, float]:
    """Return the bytes of keys and values for these rows and prompts at their longest, and of everything else."""
    token, row = kv_bytes(kv_sizes(model), 2 if bf16 else 4, most)
    copies = _copied_bytes(model)
    width, (by_hidden, by_forward, by_attention) = _widths(model), PREFILL_BYTES[bf16]
    widest = max(by_forward * width.forward, by_attention * (width.heads + width.keys))
    prefill = min(prompts * prompt, PREFILL_TOKENS) * (by_hidden * width.hidden + widest)
    return float(prompts * prompt * token + rows * row), copies + max(prefill, draw * rows * vocabulary(model))


def _copied_bytes(model: Any) -> float:
    """Return the bytes of matrices copied for a decoding step: concatenated ones, or ones with merged adapters."""
    if not supports_decoder_step(model):
        return 0.0
    joined = tuple(f"{name}_proj" for name in ("q", "k", "v", "gate", "up"))
    every = [(name, layer, linear_of(layer)) for name, layer in model.named_modules()]
    copied = [
        linear
        for name, layer, linear in every
        if type(linear) in (nn.Linear, Nf4Linear) and (name.endswith(joined) or layer is not linear)
    ]
    itemsize = model.get_input_embeddings().weight.element_size()
    return float(itemsize * sum(layer.in_features * layer.out_features for layer in copied))
