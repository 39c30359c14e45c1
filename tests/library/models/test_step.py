"""A model in the decoding loop: every backend gives the logits of whole rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.models.decoder import step as decoder_step
from posttrain.models.decoder.layer_parts import added, query_key_value
from posttrain.models.decoder.paged import PAGE, PagedAttention, own_pages
from posttrain.models.decoder.step import (
    CachedDecoder,
    CudaGraph,
    DecoderStep,
    OwnCacheDecoder,
    RecomputeDecoder,
    _concatenated,
    _layer,
    _mlp,
    backend_of,
    supports_decoder_step,
)
from posttrain.models.forward.forward import Scoring, run_in_rows
from posttrain.models.forward.varlen import takes_pages
from tests.library.models.tiny import tiny_model

PROMPTS = [[5, 6, 7], [8, 9]]


@torch.no_grad()
def logits(model: Any, row: list[int]) -> Tensor:
    """Those after the last token of a whole row, by transformers' own path."""
    was = model.config._attn_implementation
    model.set_attn_implementation("eager")
    found: Tensor = model(torch.tensor([row]), use_cache=False).logits[0, -1]
    model.set_attn_implementation(was)
    return found


@torch.inference_mode()
def decoded(decoder: Any, model: Any) -> None:
    """Three rows of two prompts get tokens, one leaves, and one joins."""
    rows = [[*PROMPTS[0]], [*PROMPTS[0]], [*PROMPTS[1]]]
    decoder.admit([], PROMPTS, [0, 0, 1])

    def check() -> None:
        assert_close(decoder.next_logits(), torch.stack([logits(model, row) for row in rows]), atol=1e-4, rtol=1e-4)

    def append(*tokens: int) -> None:
        places = torch.tensor([len(row) for row in rows])
        decoder.append_tokens(torch.tensor(tokens), places)
        for row, token in zip(rows, tokens, strict=True):
            row.append(token)

    check()
    append(1, 2, 3)
    check()
    decoder.keep_rows(torch.tensor([1, 2]))
    rows.pop(0)
    check()
    append(4, 5)
    decoder.admit([0, 1], [[3, 4, 5, 6]], [2])
    rows.append([3, 4, 5, 6])
    check()
    append(7, 8, 9)
    check()


def in_rows(model: Any, has_own_cache: bool) -> Any:
    run_in_rows(model)
    model.has_own_cache = has_own_cache
    return model


def test_the_fastest_backend_that_can_run_a_model() -> None:
    assert isinstance(backend_of(tiny_model(), 4, 4), CachedDecoder)
    assert type(backend_of(in_rows(tiny_model(), True), 4, 4)) is OwnCacheDecoder
    assert type(backend_of(in_rows(tiny_model(), False), 4, 4)) is RecomputeDecoder


def test_a_cached_decoder_gives_the_logits_of_whole_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model()
    fast = backend_of(model, 4, 8)
    decoded(fast, model)
    assert fast.kv_bytes() == (2 * 2 * 16 * 4, 8 * 2 * 2 * 16 * 4)
    monkeypatch.setattr(decoder_step, "supports_decoder_step", lambda model: False)
    decoded(CachedDecoder(model, 4, 8, cuda_graphs=False), model)


@pytest.mark.parametrize("has_own_cache", [True, False])
def test_other_decoders_give_the_logits_of_whole_rows(has_own_cache: bool) -> None:
    model = tiny_model()
    decoder = (OwnCacheDecoder if has_own_cache else RecomputeDecoder)(in_rows(tiny_model(), has_own_cache))
    decoded(decoder, model)
    assert decoder.kv_bytes() == (0, 0)


def test_a_llama_with_biases_is_a_step_too() -> None:
    config = LlamaConfig(
        vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        num_key_value_heads=2, attention_bias=True, mlp_bias=True, initializer_range=0.2,
    )  # fmt: skip
    torch.manual_seed(0)
    model = LlamaForCausalLM(config).eval()
    for layer in model.model.layers:
        for part in (layer.self_attn.q_proj, layer.mlp.down_proj):
            part.bias.data.normal_()
    model.set_attn_implementation(tiny_model().config._attn_implementation)
    assert supports_decoder_step(model) is True
    decoded(CachedDecoder(model, 4, 8, cuda_graphs=False), model)


def test_which_models_are_steps() -> None:
    assert supports_decoder_step(tiny_model()) is True
    gelu, dynamic, other = tiny_model(), tiny_model(), tiny_model()
    gelu.config.hidden_act = "gelu"
    dynamic.config.rope_parameters = {"rope_type": "dynamic", "factor": 2.0}
    other.model.layers[1].mlp.up_proj = torch.nn.Identity()
    assert [supports_decoder_step(model) for model in (gelu, dynamic, other)] == [False] * 3
    step = DecoderStep(tiny_model(), 8)
    assert step.takes_pages == takes_pages(torch.empty(0, 8)) and step.takes_pages is False


def test_the_parts_of_a_layer() -> None:
    model = tiny_model()
    layer = model.model.layers[0]
    found = _layer(layer, 7, torch.bfloat16)
    attention = layer.self_attn
    both = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    assert torch.equal(found.qkv[0], torch.cat(both).bfloat16()) and found.qkv[1] is None
    assert found.head_norms == (attention.q_norm.weight, attention.k_norm.weight)
    assert found.scoring == Scoring(attention.scaling, attention.sliding_window) and found.before is (
        layer.input_layernorm.weight
    )
    assert _mlp(layer) == (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)


def test_layers_of_one_input_are_one_layer() -> None:
    one, two = torch.nn.Linear(3, 2), torch.nn.Linear(3, 1)
    weight, bias = _concatenated(torch.float32, one, two)
    x = torch.randn(4, 3)
    assert bias is not None
    assert_close(x @ weight.T + bias, torch.cat([one(x), two(x)], dim=1))
    start = torch.randn(4, 2)
    assert_close(added(start, x, one.weight, one.bias), start + one(x))
    assert_close(added(start, x, one.weight, None), start + x @ one.weight.T)


def test_queries_keys_and_values_are_turned_by_their_position() -> None:
    step = DecoderStep(tiny_model(), 8)
    qkv = torch.randn(2, (4 + 2 + 2) * 8)
    at_0 = step._cos[[0, 0]][:, None], step._sin[[0, 0]][:, None]
    query, key, value = query_key_value(qkv, None, at_0, 2, 1e-6)
    split = qkv.view(2, 8, 8)
    assert_close(query[:, :, 0], split[:, :4])
    assert_close(key[:, :, 0], split[:, 4:6])
    assert_close(value[:, :, 0], split[:, 6:])
    at_3 = step._cos[[3, 3]][:, None], step._sin[[3, 3]][:, None]
    turned = query_key_value(qkv, None, at_3, 2, 1e-6)
    assert_close(turned[0].norm(dim=-1), query.norm(dim=-1)) and not torch.allclose(turned[0], query)


def test_a_captured_step_is_used_for_its_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Graphs need a GPU; here one that runs its step at once stands for them."""
    made: list[int] = []

    class Graph:
        def __init__(self, step: Any, token_R: Tensor, position_R: Tensor, size: int) -> None:
            self.step = step
            made.append(size)

        def __call__(self, token_R: Tensor, position_R: Tensor) -> Tensor:
            found: Tensor = self.step(token_R, position_R)
            return found

    monkeypatch.setattr(decoder_step, "CudaGraph", Graph)
    decoder = CachedDecoder(tiny_model(), 4, 8, cuda_graphs=False)
    decoder._step = lambda token_R, position_R, cache: token_R + position_R  # type: ignore[assignment]
    cache = PagedAttention(4, 8, torch.device("cpu"))
    monkeypatch.setattr(cache, "locate", lambda position_R: None)
    for _ in range(2):
        assert decoder._captured(cache, torch.tensor([1, 2]), torch.tensor([3, 4])).tolist() == [4, 6]
    assert made == [8]
    decoder._cache = cache
    assert decoder.kv_bytes() == (256, 256 * PAGE * (own_pages(8) + 1))
    graph = CudaGraph.__new__(CudaGraph)
    graph._token_R, graph._position_R, graph._states_R = torch.zeros(8), torch.zeros(8), torch.arange(8.0)
    graph._graph = type("Played", (), {"replay": lambda self: None})()
    assert graph(torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])).tolist() == [0.0, 1.0]
    assert graph._token_R.tolist() == [1.0, 2.0] + [0.0] * 6
