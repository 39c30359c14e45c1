"""Models that a caller has wrapped with peft, merged into whole ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from torch.testing import assert_close

from posttrain.errors import ModelError
from posttrain.models.adapters import LoraOptions
from posttrain.models.lora import add
from posttrain.models.peft_layers import _is_wrapper, _on_host, _tensors, has_peft_layers, merged_copy
from tests.library.models.tiny import tiny_model

IDS = torch.tensor([[1, 2, 3, 4]])


def plain() -> Any:
    """A model with transformers' own attention."""
    model = tiny_model()
    model.set_attn_implementation("eager")
    return model


def wrapped(**options: Any) -> Any:
    """A model in peft's wrapper whose adapter changes it."""
    model = get_peft_model(plain(), LoraConfig(r=2, **{"target_modules": ["q_proj"], **options}))
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, part in model.named_parameters():
            if "lora_" in name:
                part.normal_(std=0.3, generator=draw)
    return model.eval()


def test_whose_layers_are_peft_s() -> None:
    assert has_peft_layers(wrapped()) is True
    assert has_peft_layers(tiny_model()) is False
    ours = add(tiny_model(), LoraOptions(rank=2), Path("base"), 0)
    assert has_peft_layers(ours) is False, "our own adapter is saved as one"


@pytest.mark.parametrize("options", [{}, {"modules_to_save": ["lm_head"]}, {"target_modules": ["embed_tokens"]}])
def test_a_merged_copy_gives_the_same_logits(options: dict[str, Any]) -> None:
    model = wrapped(**options)
    whole = merged_copy(model.get_base_model())
    assert not any(_is_wrapper(part) for part in whole.modules()) and not hasattr(whole, "peft_config")
    with torch.no_grad():
        assert_close(whole(IDS).logits, model(IDS).logits, atol=1e-5, rtol=0)
        assert (whole(IDS).logits - plain()(IDS).logits).abs().max() > 1e-3
    assert any(_is_wrapper(part) for part in model.modules()), "the caller's model stays as it is"


def test_weights_without_an_adapter_are_shared() -> None:
    model = wrapped().get_base_model()
    whole = merged_copy(model)
    kept, layer = "model.layers.0.mlp.up_proj", "model.layers.0.self_attn.q_proj"
    assert whole.get_submodule(kept).weight is model.get_submodule(kept).weight
    assert whole.get_submodule(layer).weight is not model.get_submodule(layer).base_layer.weight


def test_an_adapter_that_peft_cannot_merge_is_an_error() -> None:
    model = wrapped().get_base_model()
    layer = model.model.layers[0].self_attn.q_proj
    layer.merge = None
    layer.unload_and_optionally_merge_module = None
    with pytest.raises(ModelError, match="peft cannot merge its adapter into it"):
        merged_copy(model)


def test_tensors_and_copies_of_a_module() -> None:
    norm = nn.BatchNorm1d(2)
    names = [*dict(norm.named_parameters()), *dict(norm.named_buffers())]
    assert len(_tensors(norm)) == len(names) == 5
    copied = _on_host(norm.weight)
    assert isinstance(copied, nn.Parameter) and copied is not norm.weight and torch.equal(copied, norm.weight)
    buffer = _on_host(norm.running_var)
    assert not isinstance(buffer, nn.Parameter) and torch.equal(buffer, norm.running_var)
    assert buffer.data_ptr() != norm.running_var.data_ptr()
    assert _is_wrapper(norm) is False and _is_wrapper(wrapped().get_base_model().model.layers[0].self_attn.q_proj)
