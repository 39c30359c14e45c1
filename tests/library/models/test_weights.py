"""Weight files that are written tensor by tensor, and how much memory loading and saving take."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from posttrain.models.files.weights import (
    INDEX,
    STORED,
    TensorFile,
    describe,
    digest,
    has_weights,
    kind,
    open_weights,
    write_shards,
)
from tests.library.models.tiny import tiny_folder
from tests.workspace import ROOT

MOST = 1.2
"""The most memory that loading or saving may take, as a multiple of the weights."""
CASES = {
    "qwen3": {"hidden_size": 512, "intermediate_size": 2048},
    "qwen3_moe": {"hidden_size": 512, "num_experts": 16, "num_experts_per_tok": 2, "moe_intermediate_size": 128},
}
"""Some families join the experts of a layer as they load it, and copy a layer that they save: here one of 16."""
PROGRAM = """
import gc, os, sys, json
from pathlib import Path
import torch
from posttrain.models.files.store import load_model, new_model, save_model
from posttrain.pipeline.runs.stage_checkpoints import Checkpoints
from posttrain.train.checkpoint import CheckpointData
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
import transformers.core_model_loading, transformers.conversion_mapping

def of_process(what):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(what))

def peak(work):
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    before = of_process("VmRSS:")
    found = work()
    return found, of_process("VmHWM:") - before

kind, shape, tokenizer = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3]
config = CONFIG_MAPPING[kind](
    vocab_size=300, num_hidden_layers=16, num_attention_heads=8, num_key_value_heads=8, head_dim=64,
    max_position_embeddings=128, tie_word_embeddings=True, **shape)
model = new_model(config, 0)
size = sum(part.nbytes for part in model.parameters())
save_model(model, "first", tokenizer)
del model
model, load = peak(lambda: load_model("first"))
_, save = peak(lambda: save_model(model, "second", "first"))
_, half = peak(lambda: save_model(model, "half", "first", "bfloat16"))
checkpoints = Checkpoints("sft", {}, [])
tensors = dict(model.named_parameters())
_, checkpoint = peak(lambda: (checkpoints.save(CheckpointData(1, tensors, {})), checkpoints.wait()))
parts = {"load": load, "save": size + save, "save in bfloat16": size + half, "checkpoint": size + checkpoint}
print(json.dumps({"MB": size / 1e6, **{name: value / size for name, value in parts.items()}}))
"""


@pytest.mark.parametrize("metadata", [None, {"format": "pt"}])
def test_a_file_has_the_bytes_that_safetensors_writes(tmp_path: Path, metadata: dict[str, str] | None) -> None:
    """Results keep their bytes, and any reader of safetensors reads them."""
    draw = torch.Generator().manual_seed(0)
    tensors = {f"{name}.{dtype}": torch.randn(3, 5, generator=draw).to(dtype) for dtype in STORED for name in "bä\\"}
    tensors |= {"scalar": torch.tensor(2.0), "empty": torch.zeros(0, 4), "turned": torch.randn(4, 6).T}
    save_file({name: part.contiguous() for name, part in tensors.items()}, tmp_path / "theirs", metadata)
    with TensorFile(tmp_path / "ours", tensors, metadata) as file:
        for name, part in tensors.items():
            file.write(name, part)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    assert all(torch.equal(part, tensors[name]) for name, part in load_file(tmp_path / "ours").items())


@pytest.mark.slow
@pytest.mark.parametrize("kind", CASES)
def test_loading_and_saving_hold_the_weights_once(kind: str, tmp_path: Path) -> None:
    """Of a model of about 300 MB, in a process of its own."""
    folder = tiny_folder(tmp_path / "tiny")
    command = [sys.executable, "-c", PROGRAM, kind, json.dumps(CASES[kind]), str(folder)]
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "DVC_ROOT": str(tmp_path), "OMP_NUM_THREADS": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",  # else the C library keeps up to 64 MB that were freed, of any model
    }  # fmt: skip
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    print(found)
    assert found.pop("MB") > 200
    assert {name: share for name, share in found.items() if share > MOST} == {}


def test_shards_are_written_described_and_read(tmp_path: Path) -> None:
    parts = {"a": torch.arange(4.0), "b": torch.ones(2, dtype=torch.bfloat16), "c": torch.zeros(3)}
    assert has_weights(tmp_path) is False
    found = write_shards(parts.items(), parts, tmp_path, 18)
    assert found == {name: describe(part) for name, part in parts.items()} and has_weights(tmp_path) is True
    plain = hashlib.sha256(parts["a"].numpy().tobytes()).hexdigest()
    assert found["a"] == {"shape": [4], "dtype": "float32", "sha256": plain}
    assert len([*tmp_path.glob("*.safetensors")]) == 2
    index = json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))
    assert index["metadata"] == {"total_size": 32} and [*index["weight_map"]] == ["a", "b", "c"]
    with open_weights(tmp_path) as weights:
        assert "a" in weights and "x" not in weights and len(weights) == 3 and list(weights) == ["a", "b", "c"]
        assert torch.equal(weights.tensor("b"), parts["b"]) and weights.later("c").get_shape() == [3]
        assert weights.dtype() == torch.float32
    assert write_shards(parts.items(), parts, tmp_path, 10**9, described=False) == {"a": {}, "b": {}, "c": {}}
    assert digest(tmp_path / INDEX) == hashlib.sha256((tmp_path / INDEX).read_bytes()).hexdigest()
    assert kind(torch.bfloat16) == "bfloat16"
