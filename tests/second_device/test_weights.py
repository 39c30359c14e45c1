"""Weights for vLLM's servers go from the device to the kept files through one pinned buffer, each number once."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from posttrain.models.device import DeviceParams, Runtime
from posttrain.sampling.vllm import kept_files
from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.weights import HEAD, write_weights
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import tiny_folder


def test_what_is_written_is_the_policy_on_the_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_files, "PIECE", 256)  # several pieces of each matrix
    folder, place = tiny_folder(tmp_path / "model"), tmp_path / "place"
    place.mkdir()
    models = ModelSet.load(Runtime(DeviceParams(device="cuda")), folder, frozenset(), TrainingParams())
    kept = KeptFolders(place)
    for number in range(3):
        with torch.no_grad():
            for part in models.trained_parameters().values():
                part.add_(0.5)
        found = load_file(
            write_weights(models.policy, folder, kept, f"v{number}", torch.bfloat16) / "model.safetensors"
        )
        own = {name: part.detach().cpu() for name, part in models.trained_parameters().items()}
        assert kept._buffer is not None and kept._buffer.numel() == 256
        for name, part in own.items():
            assert torch.equal(found[name.removeprefix("policy.")], part.bfloat16()), name
        assert torch.equal(found[HEAD], found["model.embed_tokens.weight"])
