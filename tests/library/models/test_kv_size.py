"""What a model caches of a token."""

from __future__ import annotations

from posttrain.models.decoder.kv_size import LayerSize, kv_bytes, kv_sizes
from tests.library.models.tiny import tiny_model


def test_kv_sizes() -> None:
    model = tiny_model(kv_heads=1)
    assert kv_sizes(model) == (LayerSize(16, None), LayerSize(16, None)) and kv_sizes(model) is model.kv_sizes


def test_kv_bytes_of_windows() -> None:
    assert kv_bytes([LayerSize(10, None), LayerSize(4, 3)], 2, 8) == (2 * 14, 2 * (10 * 8 + 4 * 3))
