"""Matrices in 4 bits: codes, scales and products."""

from __future__ import annotations

import torch
from torch import nn
from torch.testing import assert_close

from posttrain.models.nf4 import (
    BLOCK,
    LEVELS,
    PART_BYTES,
    Nf4Linear,
    dense_bytes,
    dequantise,
    level_pairs,
    part_blocks,
    quantise,
    quantise_model,
    round_model,
)
from tests.library.models.tiny import tiny_model


def test_the_levels_come_back_exactly() -> None:
    weight = torch.tensor(LEVELS).repeat(BLOCK // 16)[None] * 3
    codes, scales = quantise(weight)
    assert scales.tolist() == [3.0] and codes[:8].tolist() == [0x01, 0x23, 0x45, 0x67, 0x89, 0xAB, 0xCD, 0xEF]
    assert_close(dequantise(codes, scales, weight.shape), weight)


def test_pairs_and_parts() -> None:
    assert level_pairs()[0x2F].tolist() == [torch.tensor(LEVELS[2]).item(), 1.0]
    assert part_blocks(torch.device("cpu")) == 2**14 and part_blocks(torch.device("meta")) == 2**20


def test_a_layer_in_4_bits() -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 8)
    layer = Nf4Linear(linear)
    dense = layer.dense_weight()
    assert dense.shape == (8, 24) and float((dense - linear.weight).abs().max()) < 0.2 * float(
        linear.weight.abs().max()
    )
    x = torch.randn(3, 24, requires_grad=True)
    y = layer(x)
    assert_close(y, x @ dense.T + linear.bias)
    (gradient,) = torch.autograd.grad(y.sum(), [x])
    assert_close(gradient, dense.sum(0).expand(3, 24))
    assert dense_bytes(layer, 2, torch.device("cpu")) == (2 + PART_BYTES) * 8 * 24
    assert dense_bytes(linear, 2, torch.device("cpu")) == 0


def test_whole_models() -> None:
    rounded, quantised = tiny_model(), tiny_model()
    round_model(rounded)
    quantise_model(quantised)
    layer = quantised.model.layers[0].mlp.up_proj
    assert isinstance(layer, Nf4Linear) and isinstance(quantised.lm_head, nn.Linear)
    assert_close(layer.dense_weight(), rounded.model.layers[0].mlp.up_proj.weight.detach())
