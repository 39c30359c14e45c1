"""Attention inside compiled layers: traced once for batches of any shape, with the same outputs and gradients.

The second device has no Triton, so the traced graph runs operator by operator.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posttrain.models.files.store import new_model
from posttrain.models.forward import flash
from posttrain.models.forward.compiled import _attention_of, _forward, compiled_layers
from posttrain.models.forward.forward import packed_states
from posttrain.models.forward.layers import plain_forward
from posttrain.models.forward.traced import TRACED, heads_of
from posttrain.models.master_weights import compute_in_bf16
from posttrain.rollout import TokenRow
from posttrain.text.packing import PackedRows, pack
from tests.library.models.families import EVERY, SHAPE
from tests.second_device.test_flash import Kernel, installed

CUDA = torch.device("cuda")
BATCHES = {
    "shared prompt": [TokenRow([1, 2], [3] * 9), TokenRow([1, 2], [4] * 5), TokenRow([5], [6] * 20)],
    "alone": [TokenRow([1], [3] * 40), TokenRow([7, 8, 9], [4] * 3)],
    "one row": [TokenRow([2], [3] * 17)],
}


@pytest.fixture
def model() -> Iterator[Any]:
    made = new_model(CONFIG_MAPPING["qwen3"](**{**SHAPE, **EVERY["qwen3"]}), 0)
    compute_in_bf16(made)
    yield made.to(CUDA).train()
    torch.compiler.reset()


def gradients(model: Any, packed: PackedRows) -> list[Tensor]:
    """The states and the gradient of every weight."""
    states = packed_states(model, packed)
    weights = torch.randn(states.shape, generator=torch.Generator().manual_seed(1)).to(CUDA)
    (states.float() * weights).sum().backward()
    found = [
        states.detach().float().cpu(),
        *(part.grad.float().cpu() for part in model.parameters() if part.grad is not None),
    ]
    model.zero_grad()
    return found


def test_layers_are_traced_whole_and_once(model: Any) -> None:
    packs = [pack(rows).to(CUDA) for rows in BATCHES.values()]
    layers = compiled_layers(model)
    with installed(Kernel()):
        expected = [gradients(model, packed) for packed in packs]
        with _attention_of([model], layers):
            assert [heads_of(model)] == TRACED
            plain = plain_forward(layers[0])
            body = torch.compile(plain, dynamic=True, fullgraph=True, backend="aot_eager")
            for layer in layers:
                layer.forward = lambda *inputs, layer=layer, **named: _forward(layer, plain, body, *inputs, **named)
            found = [gradients(model, packs[0])]
            torch.compiler.set_stance("fail_on_recompile")
            try:
                found += [gradients(model, packed) for packed in packs[1:]]
            finally:
                torch.compiler.set_stance("default")
    assert not TRACED
    for one, other in zip(expected, found, strict=True):
        for mine, theirs in zip(one, other, strict=True):
            assert float((mine - theirs).norm()) <= 0.05 * float(mine.norm())  # bf16


def test_the_own_kernel_is_not_traced(model: Any) -> None:
    """Its long rows are cut, which depends on the batch."""
    flash.newest.cache_clear()
    assert heads_of(model) is None
    with _attention_of([model], compiled_layers(model)):
        assert not TRACED
