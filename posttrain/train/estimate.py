"""How much memory and disk a run will take, said before it begins rather than after hours of work."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from posttrain.errors import TrainingError
from posttrain.models.device import free_bytes
from posttrain.models.logp import GPU_TILE_BYTES, TILE_BYTES
from posttrain.train.modules import Modules

GB = 1e9
TILES = 4
"""Tensors of a tile's size that the head takes at a time, whatever the vocabulary."""
HIDDEN, FORWARD = 12, 4
"""Vectors of the hidden and of the feed-forward size that a decoder layer keeps per token for the backward pass."""
MEND = "Lower micro_tokens, use a smaller model, or precision bf16 on a GPU"


def training_bytes(modules: Modules) -> float:
    """What training takes beyond the weights that are loaded: gradients, two averages, and what a pass keeps."""
    trained = sum(parameter_bytes(module) for module in modules.trained.values())
    config = modules.policy.config.get_text_config()
    width, forward = config.hidden_size, getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    number = 3.0 if modules.device.bf16 else 4.0  # under autocast about half of what is kept is bf16
    kept = modules.micro_tokens * config.num_hidden_layers * (HIDDEN * width + FORWARD * forward) * number
    tile = TILE_BYTES if modules.device.torch.type == "cpu" else GPU_TILE_BYTES
    return 3.0 * trained + float(kept) + TILES * tile


def checkpoint_bytes(modules: Modules) -> int:
    """The size of one checkpoint: the trained weights with their averages, and those of models that follow them."""
    followers = sum(parameter_bytes(model) for model in (modules.reference, modules.old) if model is not None)
    return 3 * sum(parameter_bytes(module) for module in modules.trained.values()) + followers


def parameter_bytes(module: Any) -> int:
    """The size of a model's weights."""
    return sum(part.numel() * part.element_size() for part in module.parameters())


def check_memory(modules: Modules, share: float | None, name: str) -> None:
    """Refuse a run that by estimate will not fit."""
    needed, free = training_bytes(modules), free_bytes(modules.device.torch)
    if share is not None and needed > share * free:
        what = f"training needs about {needed / GB:.3g} GB more memory, and {free / GB:.3g} GB are free"
        mend = f"{MEND}; limits.memory: null (params.yaml) tries it regardless"
        raise TrainingError(what=what, where=name, mend=mend)


@contextlib.contextmanager
def told_out_of_memory(modules: Modules, name: str) -> Iterator[None]:
    """Memory that runs out all the same is said with the knobs that lower its use."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        exhausted = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not exhausted:
            raise
        what = f"the memory ran out; by estimate {training_bytes(modules) / GB:.3g} GB were needed beside the weights"
        raise TrainingError(what=what, where=name, mend=f"{MEND}; the last checkpoint is kept") from error
