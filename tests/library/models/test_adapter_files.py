"""Adapter folders in peft's format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from posttrain.errors import ModelError
from posttrain.models.files.adapter_files import (
    ADAPTED_CONFIG,
    ADAPTER_CONFIG,
    ADAPTER_WEIGHTS,
    PREFIX,
    Base,
    base_digest,
    check_base,
    config_file,
    is_adapter,
    merge_into,
    read_adapter,
    scaling,
    trained_tensors,
    whole_model,
)

CONFIG = {"peft_type": "LORA", "r": 4, "lora_alpha": 8}


def adapter(folder: Path, **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / ADAPTER_CONFIG).write_text(json.dumps({**CONFIG, **config}))
    save_file({f"{PREFIX}a.lora_A.weight": torch.ones(1, 2)}, folder / ADAPTER_WEIGHTS)
    return folder


def test_folders(tmp_path: Path) -> None:
    base = tmp_path / "base"
    base.mkdir()
    first = adapter(tmp_path / "one", base_model_name_or_path=str(base))
    second = adapter(tmp_path / "two", base_model_name_or_path=str(first))
    assert is_adapter(first) and not is_adapter(base) and whole_model(second) == base == whole_model(base)
    assert config_file(first) == first / "config.json"
    (first / ADAPTED_CONFIG).write_text("{}")
    assert config_file(first) == first / ADAPTED_CONFIG


def test_read_adapter(tmp_path: Path) -> None:
    config, tensors = read_adapter(adapter(tmp_path / "a"))
    assert config == CONFIG and list(tensors) == ["a.lora_A.weight"]
    for wrong, message in [
        ({"peft_type": "IA3"}, "an adapter of type IA3"),
        ({"rank_pattern": {"a": 1}}, "an adapter with rank_pattern"),
        ({"r": 0}, "the adapter cannot be read"),
    ]:
        with pytest.raises(ModelError, match=message):
            read_adapter(adapter(tmp_path / "a", **wrong))


def test_scaling() -> None:
    assert scaling(CONFIG) == 2.0 and scaling({**CONFIG, "use_rslora": True}) == 4.0


def test_trained_tensors() -> None:
    model = nn.Sequential(nn.Linear(2, 1))
    model[0].weight.requires_grad_(False)
    assert list(trained_tensors(model)) == ["0.bias"]


def test_merge_into() -> None:
    model = nn.Sequential(nn.Linear(2, 3))
    before = model[0].weight.detach().clone()
    a, b = torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0], [0.0], [3.0]])
    tensors = {"0.lora_A.weight": a, "0.lora_B.weight": b, "0.bias": torch.ones(3)}
    merge_into(model, {"r": 1, "lora_alpha": 2}, tensors, "here")
    torch.testing.assert_close(model[0].weight.detach(), before + 2 * b @ a)
    assert model[0].bias.tolist() == [1, 1, 1]
    with pytest.raises(ModelError, match="the adapter's 1 does not fit the model"):
        merge_into(model, CONFIG, {"1.lora_A.weight": a, "1.lora_B.weight": b}, "here")


def test_the_frozen_model(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = base_digest(tmp_path, "manifest.json")
    check_base(Base(tmp_path, first, "whole"), tmp_path, "manifest.json")
    (tmp_path / "config.json").write_text('{"a": 1}')
    with pytest.raises(ModelError, match="has changed since the adapter was trained"):
        check_base(Base(tmp_path, first, "whole"), tmp_path, "manifest.json")
    with pytest.raises(ModelError, match="is missing"):
        check_base(Base(tmp_path / "none", first, "whole"), tmp_path, "manifest.json")
    (tmp_path / "manifest.json").write_text("m")
    assert base_digest(tmp_path, "manifest.json") != base_digest(tmp_path, "other.json")
    (tmp_path / "config.json").rename(tmp_path / ADAPTED_CONFIG)  # the frozen model is an adapter itself
    check_base(Base(tmp_path, base_digest(tmp_path, "manifest.json"), "whole"), tmp_path, "manifest.json")
