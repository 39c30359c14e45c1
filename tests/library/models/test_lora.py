"""Adapters of peft on a frozen model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from posttrain.errors import ModelError
from posttrain.models.adapters import LoraOptions, adapter_of
from posttrain.models.files.store import scorer_of
from posttrain.models.lora import _plain, _shortened, add, freeze
from posttrain.models.nf4 import Nf4Linear
from tests.library.models.tiny import tiny_model

BASE = Path("models/sft/main")


def test_a_frozen_model_trains_nothing() -> None:
    model = tiny_model()
    freeze(model, LoraOptions(type="lora"))
    assert not any(part.requires_grad for part in model.parameters())
    assert not any(isinstance(layer, Nf4Linear) for layer in model.modules())
    freeze(model, LoraOptions(type="qlora"))
    assert sum(isinstance(layer, Nf4Linear) for layer in model.modules()) == 14


def test_the_adapter_is_added_in_place() -> None:
    model = tiny_model()
    freeze(model, LoraOptions())
    options = LoraOptions(rank=4, targets=["q_proj"])
    assert add(model, options, BASE, seed=0) is model
    trained = {name.rpartition("layers.")[2] for name, part in model.named_parameters() if part.requires_grad}
    assert trained == {f"{layer}.self_attn.q_proj.lora_{side}.default.weight" for layer in (0, 1) for side in "AB"}
    found = adapter_of(model)
    assert found is not None and (found.base, found.options) == (BASE, options)
    assert found.config["r"] == 4 and found.config["target_modules"] == ["q_proj"]


def test_the_seed_decides_the_adapter_and_a_scorer_trains_its_head() -> None:
    first, same, other = (add(scorer_of(tiny_model(), "test"), LoraOptions(rank=2), BASE, seed) for seed in (1, 1, 2))
    start = [dict(model.named_parameters())["model.layers.0.mlp.up_proj.lora_A.default.weight"] for model in
             (first, same, other)]  # fmt: skip
    assert torch.equal(start[0], start[1]) and not torch.equal(start[0], start[2])
    assert first.score.weight.requires_grad
    found = adapter_of(first)
    assert found is not None and found.config["modules_to_save"] == ["score"]


def test_layers_that_take_no_adapter_are_named() -> None:
    with pytest.raises(ModelError, match="q_prj"):
        add(tiny_model(), LoraOptions(targets=["q_prj"]), BASE, 0)


def test_names_of_layers_are_short_where_they_match_no_other() -> None:
    model = tiny_model()
    both = ["model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj"]
    assert _shortened(model, both) == ["up_proj"]
    assert _shortened(model, both[:1]) == both[:1], "the short name would match the second layer too"


@pytest.mark.parametrize(("scorer", "kind"), [(False, "CAUSAL_LM"), (True, "SEQ_CLS")])
def test_the_config_is_plain_data(scorer: bool, kind: str) -> None:
    from peft import LoraConfig

    found = _plain(LoraConfig(r=3, target_modules={"v_proj", "q_proj"}), scorer=scorer)
    assert found["target_modules"] == ["q_proj", "v_proj"] and found["r"] == 3
    assert (found["task_type"], found["peft_type"], found["inference_mode"]) == (kind, "LORA", True)
    assert found["modules_to_save"] == (["score"] if scorer else None)
