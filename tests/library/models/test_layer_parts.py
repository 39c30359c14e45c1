"""The parts of a decoder layer around attention: they are the model's own layer, also when they are compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.models.decoder.layer_parts import after_attention, before_attention, compiled_part
from posttrain.models.decoder.step import DecoderStep
from tests.library.models.tiny import tiny_model


class OwnValues:
    """Attention of a row to its own token alone: its value."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Any) -> Tensor:
        del layer, scoring
        assert key.shape == value.shape
        return value.repeat_interleave(query.shape[1] // value.shape[1], 1).transpose(1, 2)


def states(step: DecoderStep, rows: int) -> Tensor:
    """The step's output for some tokens and positions."""
    places = torch.arange(rows)
    with torch.inference_mode():
        found: Tensor = step(3 + places, places % 7, OwnValues())  # type: ignore[arg-type]
    return found


def test_the_parts_are_a_layer_of_the_model() -> None:
    model = tiny_model()
    layer, step = model.model.layers[0], DecoderStep(model, 8)
    parts, x = step._layers[0], torch.randn(3, 32)
    turn = step._cos[[2, 2, 2]][:, None], step._sin[[2, 2, 2]][:, None]
    query, key, value = before_attention(x, parts.before, parts.qkv, parts.head_norms, turn, 2, 1e-6)
    normed = layer.input_layernorm(x)
    assert_close(value[:, :, 0].flatten(1), layer.self_attn.v_proj(normed))
    expected = layer.self_attn.q_norm(layer.self_attn.q_proj(normed).view(3, 4, 8))
    assert_close(query[:, :, 0].norm(dim=-1), expected.norm(dim=-1))
    assert key.shape == (3, 2, 1, 8)
    mixed = torch.randn(3, 32)
    found = after_attention(x, mixed, parts.out, parts.after, parts.gate_up, parts.down, 1e-6)
    residual = x + layer.self_attn.o_proj(mixed)
    assert_close(found, residual + layer.mlp(layer.post_attention_layernorm(residual)))


@pytest.mark.slow
def test_compiled_parts_give_the_same_for_any_number_of_rows() -> None:
    torch._dynamo.reset()
    plain, compiled = DecoderStep(tiny_model(), 8), DecoderStep(tiny_model(), 8, compiled=True)
    assert compiled._before is not before_attention and plain._before is before_attention
    for rows in (2, 5, 8, 16, 3):
        assert_close(states(compiled, rows), states(plain, rows), rtol=1e-5, atol=1e-5)
    with torch.compiler.set_stance("fail_on_recompile"):
        states(compiled, 11)
    x = torch.randn(4, 3)
    assert_close(compiled_part(torch.square)(x), x.square())
