"""The memory of a model's keys and values, from one pass over one token. No weights are needed (meta device)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from posttrain.models.forward.forward import Scoring, hidden_states, runs_in_rows


@dataclass(frozen=True)
class LayerSize:
    """A layer's cached numbers per token, and its window; None: all tokens."""

    numbers: int
    window: int | None


@torch.no_grad()
def kv_sizes(model: Any) -> Sequence[LayerSize]:
    """Return the size for each layer; empty for a model without a cache. The result is stored on the model."""
    sizes: Sequence[LayerSize] | None = getattr(model, "kv_sizes", None)
    if sizes is None:
        recorder = _Recorder()
        if not runs_in_rows(model):
            table = model.get_input_embeddings()
            zero = torch.zeros(1, 1, dtype=torch.long, device=table.weight.device)
            hidden_states(model, zero, zero, recorder, table.weight.new_zeros(1, 1, table.embedding_dim))
        sizes = model.kv_sizes = tuple(recorder.layers.values())
    return sizes


def kv_bytes(sizes: Sequence[LayerSize], itemsize: int, max_tokens: int) -> tuple[int, int]:
    """Return the bytes of keys and values per prompt token, and of a completion at its longest."""
    longest = [max_tokens if size.window is None else min(max_tokens, size.window) for size in sizes]
    token = sum(size.numbers for size in sizes)
    return itemsize * token, itemsize * sum(size.numbers * most for size, most in zip(sizes, longest, strict=True))


class _Recorder:
    """An attention that computes nothing and records what a cache would store."""

    def __init__(self) -> None:
        self.layers: dict[int, LayerSize] = {}

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        numbers = key.shape[1] * (key.shape[3] + value.shape[3])
        self.layers[layer] = LayerSize(numbers, scoring.window)
        return value.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
