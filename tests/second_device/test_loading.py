"""The memory of the device while models are loaded: never more than what stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_policy, new_model, save_model
from posttrain.models.sharding import shard
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import tiny_folder

LAYERS, WIDTH, RANKS = 8, 128, 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose layers are most of it."""
    from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

    work = tmp_path_factory.mktemp("large")
    tiny_folder(work)
    config = Qwen3Config(
        vocab_size=300, hidden_size=WIDTH, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, intermediate_size=384, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    save_model(new_model(config, 0), work / "large", work / "tokenizer")
    return work / "large"


@pytest.mark.parametrize(("kind", "per_weight"), [("none", 8.1), ("lora", 2.3), ("dora", 2.4), ("qlora", 0.9)])
def test_loading_takes_no_more_than_what_stays(kind: str, per_weight: float, folder: Path) -> None:
    adapter = {"type": kind} if kind == "none" else {"type": kind, "rank": 1}
    params = TrainingParams.model_validate({"adapter": adapter})
    count = sum(part.numel() for part in load_policy(folder).parameters())
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    models = ModelSet.load(Runtime(DeviceParams(device="cuda")), folder, frozenset({"ref_logp"}), params)
    kept, peak = (one() - before for one in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated))
    assert all(part.is_cuda for part in models.policy.parameters())
    assert peak <= 1.05 * kept
    assert kept / count < per_weight


@pytest.fixture
def ranks() -> Iterator[None]:
    """The first of four processes, whose exchanges do nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("ranks")
def test_a_divided_model_is_moved_layer_by_layer(folder: Path) -> None:
    model = load_policy(folder)
    size = sum(part.nbytes for part in model.parameters())
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    shard(model, init_device_mesh("cuda", (RANKS,), mesh_dim_names=("shard",)), bf16=True)
    peak = torch.cuda.max_memory_allocated() - before
    assert torch.cuda.memory_allocated() - before < 1.1 * size / RANKS
    assert peak < size / RANKS + 2.5 * size / LAYERS, "a process holds its rows and a layer or two"
