"""Estimate the memory and disk space that a run needs, before it starts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from posttrain.distributed import world
from posttrain.errors import TrainingError
from posttrain.formulas import distill
from posttrain.models.device import free_bytes, gpu_tile_bytes
from posttrain.models.files.loading import is_scorer
from posttrain.models.forward.activations import Activations
from posttrain.models.forward.logp import TILE_BYTES, TILE_TOKENS
from posttrain.models.memory import (
    byte_count,
    gathered_bytes,
    layer_bytes,
    master_bytes,
    product_bytes,
    vocabulary,
    waiting_bytes,
)
from posttrain.models.nf4 import dense_bytes
from posttrain.settings.host import HOST
from posttrain.train.model_set import ModelSet

GB = 1e9
TILES = 4
"""The number of tile-sized tensors that the head needs at a time."""
COPIES = 2
"""The number of AdamW's moments per weight."""
DIVERGENCE_TILES = 7
"""The number of tile-sized tensors that a divergence needs at a time. Jensen-Shannon needs a few more."""
LOWER_MEMORY = (
    "Set activations: selective, recompute or offload, lower micro_tokens, use a smaller model, or precision bf16 on a "
    "GPU"
)


def training_parts(
    models: ModelSet,
    step_tokens: int,
    activations: Activations,
    shards: int | None = None,
    copies: int = COPIES,
    processes: int | None = None,
) -> dict[str, float]:
    """Return bytes of device memory by use, at the peak of an AdamW step.

    `shards`: the number of processes to divide models among; None: they are already divided as intended. `copies`:
    float32 numbers that the optimizer keeps per weight. `processes`: those that share a step; None: the present ones.
    """
    processes = world.count() if processes is None else processes
    shards = models.divided_by if shards is None else shards
    if activations == "offload" and models.runtime.device.type == "cpu":  # the host's memory is the device's
        activations = "recompute"
    trained, bf16 = models.trained.values(), models.runtime.bf16
    weight_bytes = float(byte_count(models.trained_parameters().values())) / shards
    tokens = min(models.micro_tokens, most_of_share(step_tokens, processes))
    waiting = float(tokens * sum(waiting_bytes(model, activations, bf16=bf16) for model in trained))
    layer = float(tokens * max(layer_bytes(model, bf16=bf16) for model in trained))
    dense = float(max(dense_bytes(model, 2 if bf16 else 4, models.runtime.device) for model in trained))
    product_memory = (
        tokens * max(product_bytes(model, bf16=bf16) for model in trained) if activations == "selective" else 0
    )
    again = 0.0 if activations == "keep" else layer - product_memory
    head = 0.0 if is_scorer(models.policy) else _tile_bytes(models, tokens)
    # gradients of earlier passes
    before = weight_bytes if step_tokens > processes * models.micro_tokens else _head_bytes(models.policy) / shards
    start = {"gradients": before, "activations": waiting + again + dense, "head": max(head - again - dense, 0.0)}
    end = {"gradients": weight_bytes, "activations": layer + dense, "head": 0.0}
    return {
        **(_whole_weights(models) if shards == 1 else _divided_weights(models, shards)),
        "moments": copies * weight_bytes,
        **(start if sum(start.values()) > sum(end.values()) else end),  # of a backward pass
    }


def _whole_weights(models: ModelSet) -> dict[str, float]:
    return {
        "weights": float(byte_count(part for model in _all_models(models) for part in model.parameters())),
        "masters": float(sum(master_bytes(model) for model in models.trained.values())),
    }


def _divided_weights(models: ModelSet, shards: int) -> dict[str, float]:
    """Return bytes of this process's rows and of gathered layers.

    Trained weights are float32 rows without extra masters.
    """
    divided = [model for model in (models.policy, models.critic, models.reference) if model is not None]
    whole = [model for model in _all_models(models) if all(model is not other for other in divided)]
    frozen = (part for model in divided for part in model.parameters() if not part.requires_grad)
    rows = byte_count(frozen) + byte_count(models.trained_parameters().values())
    return {
        "weights": rows / shards + byte_count(part for model in whole for part in model.parameters()),
        "gathered": sum(gathered_bytes(model, bf16=models.runtime.bf16) for model in divided),
    }


def _head_bytes(model: Any) -> float:
    """Return the gradient's bytes of a head that is a trained matrix."""
    head = None if is_scorer(model) else model.get_output_embeddings()
    return 0.0 if head is None or not head.weight.requires_grad else 4.0 * head.weight.numel()


def _tile_bytes(models: ModelSet, tokens: int) -> float:
    """Return the bytes of the head's largest tile, or of a divergence's tile if larger."""
    token = 4 * vocabulary(models.policy)
    device = models.runtime.device
    tile = gpu_tile_bytes(device) if device.type == "cuda" else TILE_BYTES
    largest = TILES * min(tokens * token, max(tile, TILE_TOKENS * token))
    if not models.teachers and models.old is None:
        return float(largest)
    return float(max(largest, DIVERGENCE_TILES * token * min(tokens, distill.TILE_TOKENS)))


def _all_models(models: ModelSet) -> list[Any]:
    teachers = (teacher.model for teacher in models.teachers)
    every = (models.policy, models.critic, models.reference, models.old, *teachers)
    return [model for model in every if model is not None]


def most_of_share(step_tokens: int, processes: int) -> int:
    """Return a process's tokens in the largest step: an even share if there are enough rows."""
    return -(-step_tokens // processes)


def most_tokens(sizes: Sequence[int] | np.ndarray[Any, Any], count: int) -> int:
    """Return the total tokens of the `count` longest examples, which bounds a step of `count` examples."""
    return int(np.sort(sizes)[-count:].sum())


def checkpoint_bytes(models: ModelSet, copies: int = COPIES) -> int:
    """Return a checkpoint's size: the trained weights, their moments, and frozen copies of the policy."""
    frozen = [model for model in (models.reference, models.old) if model is not None]
    weights = byte_count(part for model in frozen for part in models.own_parameters(model).values())
    return (1 + copies) * byte_count(models.trained_parameters().values()) + weights


def check_memory(
    models: ModelSet, step_tokens: int, activations: Activations, share: float | None, name: str, copies: int = COPIES
) -> None:
    """Reject a run that cannot fit into a share of the free memory, and warn if it may not fit."""
    free = free_bytes(models.runtime.device)
    if models.runtime.device.type == "cpu":
        free /= world.count()
    least, most = (_more_bytes(models, tokens, activations, copies) for tokens in (0, step_tokens))
    if share is None or most <= share * free:
        return
    if least > share * free:
        what = f"training needs at least {least / GB:.3g} GB more memory, but {free / GB:.3g} GB are free"
        fix = f"Use a smaller model; limits.memory: null ({HOST.settings_file}) tries it regardless"
        raise TrainingError(what=what, where=name, fix=fix)
    warning = f"may run out of memory: a step takes up to {most / GB:.3g} GB more, but {free / GB:.3g} GB are free"
    print(f"{name}: {warning}. {LOWER_MEMORY}", file=sys.stderr)


def _more_bytes(models: ModelSet, step_tokens: int, activations: Activations, copies: int = COPIES) -> float:
    """Return the bytes needed besides the loaded weights."""
    parts = training_parts(models, step_tokens, activations, copies=copies)
    return sum(parts.values()) - parts["weights"] - parts.get("masters", 0.0)


@contextlib.contextmanager
def explained_out_of_memory(models: ModelSet, step_tokens: int, activations: Activations, name: str) -> Iterator[None]:
    """Turn an out-of-memory error into an error that lists the parameters to lower."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        exhausted = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in str(error)
        if not exhausted:
            raise
        needed = _more_bytes(models, step_tokens, activations)
        what = f"out of memory; the estimate was {needed / GB:.3g} GB in addition to the weights"
        fix = f"{LOWER_MEMORY}. It continues from its last checkpoint only if you change `activations` and nothing else"
        raise TrainingError(what=what, where=name, fix=fix) from error
