"""Layers of two operations on the second device: what they cost, where they run, and that the record says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from benchmarks.layer_cost import layer_cost, models_of, step_of
from posttrain.measure.record import note, noted
from posttrain.models.adapters import LoraOptions
from posttrain.models.files.store import new_model
from posttrain.models.forward.activations import Activations
from posttrain.models.forward.forward import packed_states
from posttrain.models.forward.layers import FUSED, PLAIN, FusedLayer
from posttrain.models.forward.products import Matrix, joined
from posttrain.models.lora import add, freeze
from posttrain.text.packing import pack
from tests.library.models.families import EVERY, SHAPE
from tests.second_device.device import calls
from tests.second_device.test_families import ROWS, trained

MOST: dict[tuple[str, Activations], tuple[int, float, float]] = {
    ("full", "keep"): (45, 70, 160),
    ("full", "selective"): (48, 90, 180),
    ("full", "recompute"): (60, 100, 220),
    ("sharded", "keep"): (66, 110, 200),
    ("lora", "keep"): (72, 70, 225),
    ("lora", "selective"): (77, 90, 250),
    ("lora", "recompute"): (100, 100, 320),
}
"""Operators of a layer, and its bytes in units of the hidden states: beside products and attention, and all.

transformers' own layers: 86, 180, 268; 110, 239, 351; 90, 206, 293; 152, 291, 423; 202, 405, 587.
"""


def fused(name: str) -> Any:
    return new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name]}), 0)


@pytest.mark.parametrize("case", MOST, ids="-".join)
def test_a_layer_is_few_operators_that_move_few_bytes(case: tuple[str, Activations]) -> None:
    cost = layer_cost(*case, width=128)  # the ratios of the widths are the same, and the products take no time
    operators, others, every = MOST[case]
    assert cost.count <= operators
    assert cost.units("others") <= others
    assert sum(map(cost.units, cost.per_token)) <= every


@pytest.mark.parametrize(("name", "layers"), [("qwen3", FUSED), ("mistral", FUSED), ("gemma", None)])
def test_the_record_says_which_code_ran_the_layers(name: str, layers: str | None) -> None:
    model = fused(name)
    assert any(isinstance(part, FusedLayer) for part in model.modules()) == (layers is not None)
    note(layers="none yet")
    try:
        trained(model, "cuda")
    finally:
        torch.use_deterministic_algorithms(mode=False)
    assert noted("layers") == (layers or "none yet")


def test_a_second_derivative_takes_the_layers_own_code() -> None:
    """TRPO's products with the Hessian ask for it in this context."""
    model = fused("qwen3").to("cuda")
    note(layers="none yet")
    with sdpa_kernel(SDPBackend.MATH):
        packed_states(model, pack(ROWS).to(torch.device("cuda")))
    assert noted("layers") == PLAIN
    packed_states(model, pack(ROWS).to(torch.device("cuda")))
    assert noted("layers") == FUSED


def test_weights_of_gate_and_up_are_next_to_each_other_once_they_have_trained() -> None:
    models = models_of("full", 1, "keep", 128)
    mlp = models.policy.base_model.layers[0].mlp
    gate, up = Matrix(mlp.gate_proj.weight), Matrix(mlp.up_proj.weight)
    before = [one.weight.detach().clone() for one in (gate, up)]
    assert joined(gate, up) is None
    step_of(models, 16)
    torch.use_deterministic_algorithms(mode=False)
    assert joined(gate, up) is not None
    assert all(torch.equal(one.weight, part) for one, part in zip((gate, up), before, strict=True))


def test_other_families_add_their_adapters_inside_the_products() -> None:
    """PEFT would scale and add in passes of their own: per layer 4 more forward, as many backward, for 7 matrices."""
    model, options = fused("gemma"), LoraOptions(type="lora", rank=4, alpha=4)
    freeze(model, options)
    model = add(model, options, Path("model"), 0).to("cuda")
    layer = model.base_model.layers[0].mlp.up_proj
    x = torch.randn(1, 9, layer.in_features).to("cuda").requires_grad_()
    with calls() as ran:
        layer(x).sum().backward()
    assert sum(count for name, count in ran.items() if name.startswith("aten::addmm")) == 3
    assert not any(name.startswith(("aten::mul", "aten::add.")) for name in ran)
