"""The shape of a model from scratch."""

from __future__ import annotations

import pytest

from posttrain.models.scratch import ScratchParams, scratch_config


def test_a_dense_model() -> None:
    found = scratch_config(ScratchParams(layers=2, width=32, heads=4, feed_forward=48), 97, stop=5, pad=None)
    assert found.model_type == "qwen3" and (found.vocab_size, found.head_dim, found.intermediate_size) == (97, 8, 48)
    assert (found.num_hidden_layers, found.eos_token_id, found.tie_word_embeddings) == (2, 5, True)


def test_a_mixture_of_experts() -> None:
    found = scratch_config(ScratchParams(experts=4, experts_per_token=2, feed_forward=16), 97, stop=5, pad=6)
    assert found.model_type == "qwen3_moe" and (found.num_experts, found.num_experts_per_tok) == (4, 2)
    assert (found.moe_intermediate_size, found.pad_token_id) == (16, 6)


def test_what_is_refused() -> None:
    with pytest.raises(ValueError, match="not an even multiple of heads"):
        ScratchParams(width=32, heads=3)
    with pytest.raises(ValueError, match="must be >= experts_per_token"):
        ScratchParams(experts=1)
