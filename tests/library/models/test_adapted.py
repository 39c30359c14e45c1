"""Linear layers with an adapter as one operation: PEFT's outputs and gradients, and PEFT's code for all else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.models.adapters import LoraOptions, adapted_layers
from posttrain.models.forward.adapted import AdaptedLinear, adapted_output
from posttrain.models.lora import add, freeze
from tests.library.models.tiny import tiny_model


def layer_of(**options: Any) -> Any:
    model, given = tiny_model(), LoraOptions(**{"type": "lora", "rank": 4, "alpha": 12, **options})
    freeze(model, given)
    add(model, given, Path("model"), 0)
    found = dict(adapted_layers(model))["model.layers.0.mlp.up_proj"]
    draw = torch.Generator().manual_seed(0)
    for part in found.lora_B.parameters():
        part.data.normal_(0, 0.3, generator=draw)
    return found


def grads(layer: Any, out: Tensor, x: Tensor) -> list[Tensor]:
    wanted = [x, *(part for part in layer.parameters() if part.requires_grad)]
    draw = torch.Generator().manual_seed(2)
    return list(torch.autograd.grad(out, wanted, torch.randn(out.shape, generator=draw).to(out.dtype)))


def inputs() -> Tensor:
    return torch.randn(1, 9, 32, generator=torch.Generator().manual_seed(1)).requires_grad_()


@pytest.mark.parametrize("rslora", [False, True])
def test_outputs_and_gradients_are_those_of_peft(*, rslora: bool) -> None:
    layer, x = layer_of(rslora=rslora), inputs()
    assert isinstance(layer, AdaptedLinear)
    found, expected = adapted_output(layer, x), layer(x)
    assert found is not None and found.shape == expected.shape
    for one, other in zip([found, *grads(layer, found, x)], [expected, *grads(layer, expected, x)], strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-6)


def test_what_is_more_than_an_adapter_is_left_to_peft() -> None:
    x = inputs()
    assert adapted_output(layer_of(dropout=0.5), x) is None
    assert adapted_output(layer_of(type="dora"), x) is None
    layer = layer_of()
    assert adapted_output(layer, x.to(torch.bfloat16)) is None
    layer.enable_adapters(enabled=False)
    assert adapted_output(layer, x) is None and torch.equal(layer(x), layer.base_layer(x))
