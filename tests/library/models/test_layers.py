"""Layers of two operations: outputs and gradients of transformers' own layers, with and without adapters."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from posttrain.models.adapters import LoraOptions
from posttrain.models.files.store import new_model
from posttrain.models.forward.forward import PackedAttention, Scoring
from posttrain.models.forward.layer_pass import layer_output
from posttrain.models.forward.layers import _checked_scoring, has_usual_code, plain_forward
from posttrain.models.lora import add, freeze
from posttrain.models.master_weights import MASTER, compute_in_bf16
from posttrain.rollout import token_rows
from posttrain.text.packing import pack
from tests.library.models.families import EVERY, SHAPE
from tests.library.models.tiny import random_rows

USUAL = ("llama", "mistral", "qwen2", "qwen3")
LIMITS = {"fp32": 1e-5, "bf16": 3e-2}
"""Of the largest number of a tensor."""
PACKED = pack(token_rows(*random_rows(6, seed=1)))


def model_of(name: str, adapter: str | None, precision: str) -> Any:
    """A model of a family with norms and adapters that are not as they start."""
    model = new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name], "initializer_range": 0.2}), 0)
    if adapter is not None:
        options = LoraOptions(type=adapter, rank=4, alpha=12)
        freeze(model, options)
        model = add(model, options, Path("model"), 0)
    draw = torch.Generator().manual_seed(2)
    for key, part in model.named_parameters():
        if part.is_floating_point() and (part.dim() == 1 or "lora_B" in key):
            part.data += 0.2 * torch.randn(part.shape, generator=draw)
    if precision == "bf16":
        compute_in_bf16(model)
    return model


def ran(model: Any, hidden: Tensor, *, fused: bool, selects: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    """A layer's output, and the gradients of its input and its weights."""
    layer, hidden = model.base_model.layers[1], hidden.clone().requires_grad_()
    attention, places = PackedAttention(PACKED), PACKED.positions_N[None]
    positions = model.base_model.rotary_emb(hidden, places)
    scoring = _scoring(layer, model)
    if fused:
        out = layer_output(layer, hidden, positions, attention, scoring, selects=selects)
    else:
        named = {"position_embeddings": positions, "position_ids": places, "posttrain_attention": attention}
        out = layer(hidden, attention_mask=None, use_cache=False, **named)
    weights = {key: part for key, part in layer.named_parameters() if part.requires_grad}
    (out.float() * torch.randn(out.shape, generator=torch.Generator().manual_seed(4))).sum().backward()
    grads = {key: part.grad for key, part in weights.items()}
    for part in weights.values():
        part.grad = None
    return out, {"input": hidden.grad, **grads}


def _scoring(layer: Any, model: Any) -> Scoring:
    window = getattr(layer.self_attn, "sliding_window", getattr(model.config, "sliding_window", None))
    return Scoring(layer.self_attn.scaling, window)


@pytest.mark.parametrize("precision", LIMITS)
@pytest.mark.parametrize("adapter", [None, "lora"])
@pytest.mark.parametrize("name", USUAL)
def test_outputs_and_gradients_are_those_of_transformers(name: str, adapter: str | None, precision: str) -> None:
    model = model_of(name, adapter, precision)
    exact = copy.deepcopy(model).float() if precision == "bf16" else model
    for part in exact.parameters():
        vars(part).pop(MASTER, None)
    draw = torch.Generator().manual_seed(3)
    hidden = torch.randn(1, PACKED.ids_N.numel(), model.config.hidden_size, generator=draw)
    hidden = hidden.to(next(model.parameters()).dtype)
    out, grads = ran(model, hidden, fused=True)
    expected, exact_grads = ran(exact, hidden.to(torch.float32), fused=False)
    assert out.dtype == hidden.dtype
    assert grads.keys() == exact_grads.keys()
    for key, found in {"output": out, **grads}.items():
        other = exact_grads.get(key, expected).detach().float()
        assert float((found.detach().float() - other).abs().max()) <= LIMITS[precision] * float(other.abs().max()), key
    if precision == "bf16":
        assert all(grad.dtype == torch.float32 for key, grad in grads.items() if key != "input")


@pytest.mark.parametrize("adapter", [None, "lora"])
@pytest.mark.parametrize("name", USUAL)
def test_what_is_computed_again_has_the_same_bits(name: str, adapter: str | None) -> None:
    model = model_of(name, adapter, "bf16")
    hidden = torch.randn(1, PACKED.ids_N.numel(), model.config.hidden_size).bfloat16()
    (kept, grads), (selected, others) = (ran(model, hidden, fused=True, selects=selects) for selects in (False, True))
    assert torch.equal(kept, selected) and all(torch.equal(grad, others[key]) for key, grad in grads.items())


def test_what_is_not_a_plain_matrix_runs_its_own_code() -> None:
    for adapter in ("dora", "qlora"):
        model = model_of("llama", adapter, "fp32")
        hidden = torch.randn(1, PACKED.ids_N.numel(), model.config.hidden_size)
        positions = model.base_model.rotary_emb(hidden, PACKED.positions_N[None])
        layer = model.base_model.layers[0]
        assert layer_output(layer, hidden, positions, PackedAttention(PACKED), _scoring(layer, model)) is None


def test_hooks_and_weights_of_another_dtype_take_the_layers_own_code() -> None:
    model = model_of("llama", None, "fp32")
    layer, hidden = model.base_model.layers[0], torch.randn(1, PACKED.ids_N.numel(), model.config.hidden_size)
    given = (
        model.base_model.rotary_emb(hidden, PACKED.positions_N[None]),
        PackedAttention(PACKED),
        _scoring(layer, model),
    )
    assert layer_output(layer, hidden, *given) is not None
    hook = layer.mlp.register_forward_hook(lambda *_: None)
    assert layer_output(layer, hidden, *given) is None
    hook.remove()
    assert layer_output(layer, hidden, *given) is not None
    layer.input_layernorm.to(torch.float16)
    assert layer_output(layer, hidden, *given) is None


@pytest.mark.parametrize("name", [*USUAL, "gemma", "olmo2", "smollm3", "granite", "mixtral", "gpt2", "cohere"])
def test_only_layers_of_the_usual_kind_are_computed_here(name: str) -> None:
    core = new_model(CONFIG_MAPPING[name](**{**SHAPE, **EVERY[name]}), 0).base_model
    layers = getattr(core, "layers", [])
    assert any(has_usual_code(layer) for layer in layers) == (name in USUAL)


def test_the_check_at_load_refuses_a_layer_that_computes_something_else() -> None:
    """The code is Llama's; the activation, the attention's cap or the position of a norm need not be."""
    core = new_model(CONFIG_MAPPING["llama"](**{**SHAPE, **EVERY["llama"]}), 0).base_model
    layer = core.layers[0]
    found = _checked_scoring(layer, core)
    assert found == _scoring(layer, core)
    layer.mlp.act_fn = torch.nn.GELU()
    assert _checked_scoring(layer, core) is None


def test_the_compiler_gets_the_layers_own_code() -> None:
    layer = new_model(CONFIG_MAPPING["qwen3"](**{**SHAPE, **EVERY["qwen3"]}), 0).base_model.layers[0]
    assert plain_forward(layer) is type(layer).forward.__wrapped__
