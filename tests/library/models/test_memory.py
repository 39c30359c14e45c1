"""The memory of a model's passes, by hand."""

from __future__ import annotations

import pytest
import torch

from posttrain.models.memory import (
    DRAW_BYTES,
    TOP_K_BYTES,
    TOP_P_BYTES,
    byte_count,
    decoding_bytes,
    draw_bytes,
    gathered_bytes,
    layer_bytes,
    master_bytes,
    vocabulary,
    waiting_bytes,
)
from tests.library.models.tiny import tiny_model


def test_shared_tensors_count_once() -> None:
    one = torch.zeros(4)
    assert byte_count([one, one.view(4), torch.zeros(2, dtype=torch.float64)]) == 16 + 16


def test_draw_bytes() -> None:
    assert [draw_bytes(1.0, None), draw_bytes(0.9, None), draw_bytes(0.9, 5)] == [DRAW_BYTES, TOP_P_BYTES, TOP_K_BYTES]


def test_a_tiny_model() -> None:
    model = tiny_model()  # D 32, F 48, A 32, K 16, two layers with query and key norms, tied embeddings
    assert vocabulary(model) == 97 and master_bytes(model) == 0
    layer = sum(part.numel() for part in model.model.layers[0].parameters())
    rest = 97 * 32 + 32
    assert gathered_bytes(model, bf16=False) == 4 * (rest + 2 * layer + rest + layer)
    model.requires_grad_(False)
    assert gathered_bytes(model, bf16=True) == 2 * (rest + 2 * layer)


@pytest.mark.parametrize("bf16", [False, True])
def test_activations_that_wait(bf16: bool) -> None:
    model, inputs, outputs = tiny_model(), 2 if bf16 else 4, 6 if bf16 else 8
    kept = layer_bytes(model, bf16=bf16)
    assert kept > 0
    assert waiting_bytes(model, "keep", bf16=bf16) == 2 * kept + outputs * 32
    assert waiting_bytes(model, "recompute", bf16=bf16) == 2 * inputs * 32 + outputs * 32
    assert waiting_bytes(model, "offload", bf16=bf16) == 2 * inputs * 32 + outputs * 32


def test_decoding() -> None:
    model = tiny_model()
    held, _ = decoding_bytes(model, 5, 3, 10, 7, bf16=False)
    token = 4 * 2 * 2 * 16  # float32, keys and values, two layers of two heads of eight
    assert held == 3 * 10 * token + 5 * 7 * token
    _, few = decoding_bytes(model, 5, 3, 10, 7, bf16=False)
    _, many = decoding_bytes(model, 1000, 3, 10, 7, bf16=False)
    _, more = decoding_bytes(model, 2000, 3, 10, 7, bf16=False)
    assert more - many == DRAW_BYTES * 1000 * 97 and few < many
