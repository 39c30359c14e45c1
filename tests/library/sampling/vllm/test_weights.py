"""Weights for an external engine: the whole model, or its adapter."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from posttrain.errors import EngineError
from posttrain.models.adapters import LoraOptions, merged_weight
from posttrain.models.files.store import load_policy
from posttrain.models.lora import add, freeze
from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.server import version_of
from posttrain.sampling.vllm.weights import HEAD, WholeWeights, lora_rank, size_of, write_lora, write_weights
from tests.library.models.tiny import tiny_folder

LAYER = "model.layers.0.self_attn.q_proj"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("weights"))


def adapted(folder: Path, **options: Any) -> Any:
    given = LoraOptions(**{"rank": 4, "targets": ["q_proj"], **options})
    model = load_policy(folder)
    freeze(model, given)
    add(model, given, folder, 0)
    with torch.no_grad():
        for name, part in model.named_parameters():
            if "lora_B" in name:
                part.normal_()
    return model


def test_the_rank_that_vllm_is_told(folder: Path) -> None:
    assert lora_rank(load_policy(folder)) is None and lora_rank(adapted(folder)) == 8
    assert lora_rank(adapted(folder, rank=1)) == 1 and lora_rank(adapted(folder, type="dora")) is None
    assert lora_rank(adapted(folder, rank=1000)) is None


def test_the_tensors_of_a_model_without_its_adapter_s_layers(folder: Path) -> None:
    model = adapted(folder)
    whole, frozen = WholeWeights(model, adapter=True), WholeWeights(model, adapter=False)
    plain = dict(load_policy(folder).named_parameters())
    assert len(whole) == len(plain) and set(whole) == set(frozen) == plain.keys()
    assert torch.equal(whole[f"{LAYER}.weight"], merged_weight(model.get_submodule(LAYER)))
    assert torch.equal(frozen[f"{LAYER}.weight"], plain[f"{LAYER}.weight"])
    assert not torch.equal(whole[f"{LAYER}.weight"], plain[f"{LAYER}.weight"])


def test_a_whole_model_is_written_with_its_head_and_version(folder: Path, tmp_path: Path) -> None:
    model = load_policy(folder)
    made = write_weights(model, folder, KeptFolders(tmp_path), "step 3", torch.bfloat16)
    found = load_file(made / "model.safetensors")
    assert torch.equal(found[HEAD], model.lm_head.weight.bfloat16()) and version_of(made) == "step 3"
    assert found.keys() == {HEAD, *dict(model.named_parameters())}
    assert all(torch.equal(found[name], part.bfloat16()) for name, part in model.named_parameters())
    assert json.loads((made / "config.json").read_text())["tie_word_embeddings"] is False
    assert (made / "tokenizer.json").is_file()


def test_an_adapter_is_written_alone(folder: Path, tmp_path: Path) -> None:
    assert write_lora(adapted(folder), tmp_path, "step 4", torch.float32) == size_of(tmp_path)
    assert version_of(tmp_path) == "step 4" and (tmp_path / "adapter_config.json").is_file()


def test_weights_that_do_not_fit_are_refused(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Usage:
        free = 10

    monkeypatch.setattr("posttrain.sampling.vllm.kept_files.shutil.disk_usage", lambda _: Usage())
    with pytest.raises(EngineError, match="GB are free"):
        write_weights(load_policy(folder), folder, KeptFolders(tmp_path), "step 3", torch.float32)
