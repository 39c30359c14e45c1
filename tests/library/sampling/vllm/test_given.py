"""The folders of the weights that servers get."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from posttrain.models.adapters import LoraOptions
from posttrain.models.files.store import load_policy
from posttrain.models.lora import add, freeze
from posttrain.sampling.vllm.given import FROZEN, GivenWeights
from posttrain.sampling.vllm.server import version_of
from posttrain.sampling.vllm.weights import size_of
from tests.library.models.tiny import tiny_folder


def test_whole_models_take_turns_in_two_folders(tmp_path: Path) -> None:
    folder, place = tiny_folder(tmp_path / "model"), tmp_path / "place"
    place.mkdir()
    model = load_policy(folder)
    given = GivenWeights(model, folder, place, torch.bfloat16)
    for number in range(3):
        size = given.write(model, f"v{number}")
        assert given.folder is not None and size == size_of(given.folder) and version_of(given.folder) == f"v{number}"
        given.forget(given.folder)
    assert len([*place.iterdir()]) == 2 and given.rank is None
    assert {part.dtype for part in load_file(given.folder / "model.safetensors").values()} == {torch.bfloat16}
    given.remove()
    assert not [*place.iterdir()]


def test_an_adapter_is_written_alone_until_it_has_to_be_merged(tmp_path: Path) -> None:
    folder, place = tiny_folder(tmp_path / "model"), tmp_path / "place"
    place.mkdir()
    model, options = load_policy(folder), LoraOptions(rank=2, targets=["q_proj"])
    freeze(model, options)
    add(model, options, folder, 0)
    given = GivenWeights(model, folder, place, torch.float32)
    given.write(model, "v0")
    assert given.frozen is not None and version_of(given.frozen) == FROZEN and given.rank == 8
    first = given.folder
    assert first is not None
    given.write(model, "v1")
    given.forget(first)
    assert len([*place.iterdir()]) == 2, "the frozen model and the last adapter"
    given.merge()
    given.write(model, "v2")
    assert given.rank is None and [version_of(one) for one in place.iterdir()] == ["v2"]
