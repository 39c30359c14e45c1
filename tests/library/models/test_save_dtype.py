"""The dtype and the layout in which a model is saved."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.models.adapters import LoraOptions
from posttrain.models.files.save_dtype import (
    _dtype_of,
    _hub_layout,
    _layer,
    _named_tensors,
    round_weights,
    saved_layout,
    saved_tensors,
    unshared,
)
from posttrain.models.files.store import load_model, save_model
from posttrain.models.lora import add, freeze
from posttrain.models.master_weights import MASTER, compute_in_bf16, master_of
from tests.library.models.tiny import tiny_folder, tiny_model

BF16 = torch.bfloat16


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("saved"))


def is_rounded(part: torch.Tensor, dtype: torch.dtype) -> bool:
    return torch.equal(part, part.to(dtype).to(part.dtype))


@pytest.mark.parametrize(("given", "dtype"), [(None, torch.float32), ("bfloat16", BF16), ("float16", torch.float16)])
def test_a_model_is_rounded_to_its_dtype(folder: Path, given: Any, dtype: torch.dtype) -> None:
    model = load_model(folder)
    with torch.no_grad():
        for part in model.parameters():
            part.add_(0.1)
    assert round_weights(model, folder, given) == dtype
    assert all(is_rounded(part, dtype) for part in model.parameters())
    assert all(is_rounded(part, BF16) for part in model.parameters()) == (dtype == BF16)


def test_without_a_setting_it_is_the_dtype_of_the_start_model(folder: Path, tmp_path: Path) -> None:
    save_model(load_model(folder), tmp_path / "half", folder, "bfloat16")
    assert round_weights(load_model(tmp_path / "half"), tmp_path / "half") == BF16
    empty = Path(shutil.copytree(folder, tmp_path / "empty"))
    (empty / "model.safetensors").unlink()
    assert round_weights(load_model(folder), empty) == torch.float32


@pytest.mark.parametrize(("given", "dtype"), [(None, torch.float32), ("bfloat16", BF16)])
def test_of_an_adapter_only_its_weights_are_rounded(folder: Path, given: Any, dtype: torch.dtype) -> None:
    model = load_model(folder)
    freeze(model, LoraOptions())
    add(model, LoraOptions(rank=2, targets=["q_proj"]), folder, 0)
    before = model.model.layers[0].mlp.up_proj.weight.clone()
    assert round_weights(model, folder, given) == dtype
    adapter = [part for part in model.parameters() if part.requires_grad]
    assert all(is_rounded(part, dtype) for part in adapter)
    assert torch.equal(before, model.model.layers[0].mlp.up_proj.weight)


def test_a_training_that_rounding_undoes_is_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = load_model(folder)
    with torch.no_grad():
        for part in model.parameters():
            part.mul_(1 + 1e-5)
    round_weights(model, folder, "bfloat16")
    assert re.search(r"saving in bfloat16 rounds \d+% of the weights that training changed", capsys.readouterr().err)


def test_some_families_keep_a_tensor_in_float32() -> None:
    model = tiny_model()
    model._keep_in_fp32_modules_strict = {"norm"}
    assert _dtype_of(model, "model.norm.weight", BF16) == torch.float32
    assert _dtype_of(model, "lm_head.weight", BF16) == BF16


def test_saved_tensors_have_their_dtype_and_the_layout_no_values() -> None:
    model = tiny_model()
    saved = dict(saved_tensors(model, BF16))
    names = {name for name, _ in model.named_parameters()}
    assert saved.keys() == names and "lm_head.weight" not in names
    for name, part in model.named_parameters():
        assert saved[name].dtype == BF16 and torch.equal(saved[name], part.to(BF16))
    assert saved["model.norm.weight"].data_ptr() != model.model.norm.weight.data_ptr()
    layout = saved_layout(model, BF16)
    assert {name: (part.shape, part.dtype) for name, part in layout.items()} == {
        name: (part.shape, part.dtype) for name, part in saved.items()
    }
    assert all(part.is_meta for part in layout.values())


def test_given_tensors_take_the_place_of_the_model_s() -> None:
    model = tiny_model()
    own = {"model.norm.weight": torch.full((32,), 7.0)}
    assert {name: part.tolist() for name, part in saved_tensors(model, torch.float32, own)} == {
        "model.norm.weight": [7.0] * 32
    }
    assert saved_layout(model, torch.float32, own).keys() == own.keys()


def test_the_layout_takes_the_tensors_as_they_are() -> None:
    model = tiny_model()
    ((name, part),) = _hub_layout(model, {"model.norm.weight": model.model.norm.weight})
    assert name == "model.norm.weight" and part is model.model.norm.weight


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("model.layers.3.mlp.up_proj.weight", "model.layers.3."),
        ("model.layers.12.mlp.experts.4.weight", "model.layers.12."),
        ("model.norm.weight", ""),
    ],
)
def test_the_layer_of_a_tensor(name: str, layer: str) -> None:
    assert _layer(name) == layer


def test_tied_tensors_count_once_and_masters_stand_for_their_weights() -> None:
    model = tiny_model()
    assert _named_tensors(model).keys() == model.state_dict().keys() and "lm_head.weight" in _named_tensors(model)
    compute_in_bf16(model)
    found = unshared(model)
    assert found.keys() == {name for name, _ in model.named_parameters()}
    weight = model.model.norm.weight
    assert hasattr(weight, MASTER) and found["model.norm.weight"] is master_of(weight)
