"""Estimates of the memory and disk that a run needs, checked before it begins."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from posttrain.errors import TrainingError
from posttrain.models.device import free_bytes
from posttrain.models.logp import GPU_TILE_BYTES, TILE_BYTES
from posttrain.train.model_set import ModelSet

GB = 1e9
TILES = 4
"""Tensors of a tile's size that the head needs at a time."""
ACTIVATION_BYTES = {False: (24, 16, 12, 8, 8), True: (26, 8, 6, 4, 6)}
"""Bytes of activations that a layer saves per token for the backward pass, in float32 and under bf16 autocast: for each
unit of the hidden size D, the feed-forward width F, all heads A and all key-value heads K, and of A + K where queries
and keys are normed. Measured on gated feed-forward layers; others save less."""
LOWER_MEMORY = "Lower micro_tokens, use a smaller model, or precision bf16 on a GPU"


def training_bytes(models: ModelSet, step_tokens: int) -> float:
    """Memory in addition to the loaded weights: gradients, AdamW's moments, bf16 copies and activations."""
    trained = byte_count(models.trained_parameters().values())
    copies = 0.5 * trained if models.runtime.bf16 else 0.0
    tokens = min(models.micro_tokens, step_tokens)
    tile = TILE_BYTES if models.runtime.device.type == "cpu" else GPU_TILE_BYTES
    return (
        3.0 * trained
        + copies
        + float(tokens * activation_bytes(models.policy, bf16=models.runtime.bf16))
        + TILES * tile
    )


def activation_bytes(model: Any, *, bf16: bool) -> int:
    """Bytes of activations per token that all layers save for the backward pass."""
    config = model.config.get_text_config()
    hidden, count = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or hidden // count
    heads, keys = head * count, head * (getattr(config, "num_key_value_heads", None) or count)
    by_hidden, by_forward, by_heads, by_keys, by_norm = ACTIVATION_BYTES[bf16]
    normed = any(name.endswith(("q_norm", "q_layernorm")) for name, _ in model.named_modules())
    layer = by_hidden * hidden + by_forward * _forward_width(config) + by_heads * heads + by_keys * keys
    return int(config.num_hidden_layers * (layer + by_norm * (heads + keys) * normed))


def _forward_width(config: Any) -> int:
    """The feed-forward width per token: of a mixture of experts, that of a token's experts together."""
    width = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    experts = getattr(config, "num_experts_per_tok", None) or 0
    one = getattr(config, "moe_intermediate_size", None) or width
    return int(max(width, experts * one))


def most_tokens(sizes: Sequence[int] | np.ndarray[Any, Any], count: int) -> int:
    """The tokens of the `count` longest examples: the most that a step of so many examples can have."""
    return int(np.sort(sizes)[-count:].sum())


def checkpoint_bytes(models: ModelSet) -> int:
    """The size of one checkpoint: the trained weights, their moments, and the frozen copies of the policy."""
    frozen = [model for model in (models.reference, models.old) if model is not None]
    weights = byte_count(part for model in frozen for part in models.own_parameters(model).values())
    return 3 * byte_count(models.trained_parameters().values()) + weights


def byte_count(parts: Iterable[Tensor]) -> int:
    """The total size of tensors."""
    return sum(part.numel() * part.element_size() for part in parts)


def check_memory(models: ModelSet, step_tokens: int, share: float | None, name: str) -> None:
    """Refuse a run whose estimated memory is not free."""
    needed, free = training_bytes(models, step_tokens), free_bytes(models.runtime.device)
    if share is not None and needed > share * free:
        what = f"training needs about {needed / GB:.3g} GB more memory, and {free / GB:.3g} GB are free"
        fix = f"{LOWER_MEMORY}; limits.memory: null (params.yaml) tries it regardless"
        raise TrainingError(what=what, where=name, fix=fix)


@contextlib.contextmanager
def explained_out_of_memory(models: ModelSet, step_tokens: int, name: str) -> Iterator[None]:
    """Turn an out-of-memory error into one that names the parameters to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        exhausted = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not exhausted:
            raise
        needed = training_bytes(models, step_tokens)
        what = f"out of memory; the estimate was {needed / GB:.3g} GB in addition to the weights"
        raise TrainingError(what=what, where=name, fix=f"{LOWER_MEMORY}; the last checkpoint is kept") from error
