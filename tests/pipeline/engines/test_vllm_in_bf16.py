"""vLLM in bf16 where the run trains: samples, adapters, experts, several servers; on a GPU memory and eight bits too.

`make test-vllm` runs these; POSTTRAIN_VLLM names the Python of vLLM's environment.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from posttrain.measure.counts import COUNTS
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_tokenizer, new_model, save_model
from posttrain.models.forward.forward import score_tokens
from posttrain.models.forward.routers import Recording, find_routers
from posttrain.models.master_weights import round_masters
from posttrain.rollout import TokenRow
from posttrain.sampling.engines import ENGINES, SampledModel
from posttrain.sampling.sampler import Completion, Request, RoutedSampling, SamplingParams
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.engine import bytes_next_to_training, engine_bytes
from posttrain.sampling.vllm.process import PYTHON, USUAL
from posttrain.settings.params import check
from posttrain.text.bpe import BpeParams, train_tokenizer
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from tests.library.models.tiny import TEXTS
from tests.pipeline.engines.test_adapters import adapter_bytes
from tests.pipeline.engines.test_experts import mixture_folder
from tests.workspace import ROOT

VLLM = os.environ.get(PYTHON) or str(ROOT / USUAL)
pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which(VLLM) is None, reason="vLLM's environment is not there: make env-vllm"),
]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
needs_gpu = pytest.mark.skipif(DEVICE == "cpu", reason="needs a CUDA device")
BF16 = 0.04
"""Mean difference of log-probs, in nats, between vLLM and the trainer, both in bf16."""
EIGHT_BITS = 0.3
"""The same where vLLM computes products in eight bits."""
SAMPLING = SamplingParams(max_tokens=48, rows=64)
LONGEST = 128


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose heads have the width that Flash Attention takes."""
    path = tmp_path_factory.mktemp("qwen")
    train_tokenizer(TEXTS, BpeParams(vocabulary=300), path / "tokens")
    config = Qwen3Config(
        vocab_size=len(ChatText(load_tokenizer(path / "tokens")).tokenizer), hidden_size=512, num_hidden_layers=4,
        num_attention_heads=8, num_key_value_heads=4, head_dim=64, intermediate_size=1024, max_position_embeddings=512,
        tie_word_embeddings=True, initializer_range=0.06,
    )  # fmt: skip
    save_model(new_model(config, 0), path / "model", path / "tokens")
    return path / "model"


def models_of(folder: Path, adapter: dict[str, Any] | None = None) -> ModelSet:
    """A policy in bf16."""
    runtime = Runtime(DeviceParams(device=DEVICE, precision="bf16"))
    given = {"adapter": adapter} if adapter else {}
    return ModelSet.load(runtime, folder, frozenset(), check(TrainingParams, given, where="test"))


@contextmanager
def sampler_of(
    models: ModelSet, folder: Path, args: dict[str, Any], servers: int = 1, sampling: SamplingParams = SAMPLING
) -> Iterator[EngineSampler]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PYTHON, VLLM)
        sampled = SampledModel(models.policy, folder, ChatText(load_tokenizer(folder)), models.runtime)
        with ENGINES["vllm"].open(sampled, sampling, LONGEST, "rollout", args, servers) as sampler:
            assert isinstance(sampler, EngineSampler)
            yield sampler


def requests(count: int) -> list[Request]:
    return [Request([3, 4, 5 + i % 3], f"p{i % 3}:{i}") for i in range(count)]


@torch.no_grad()
def gap(models: ModelSet, asked: list[Request], found: list[Completion]) -> float:
    """The mean difference of log-probs between vLLM and the trainer; it is printed, with the largest one."""
    pairs = zip(asked, found, strict=True)
    rows = [TokenRow(request.ids, completion.ids, experts=completion.experts) for request, completion in pairs]
    models.policy.eval()
    packed = pack(rows).to(models.runtime.device)
    with Recording(models.policy, find_routers(models.policy), packed):
        own = score_tokens(models.policy, packed, 1.0)[0].double().cpu()
    sampled = torch.tensor([logp for completion in found for logp in completion.logps], dtype=torch.float64)
    apart = (own - sampled).abs()
    print(f"log-probs differ by {float(apart.mean()):.2g} in the mean, by {float(apart.max()):.2g} at most")
    return float(apart.mean())


def taken() -> float:
    """Bytes of the GPU that are in use, by all processes."""
    free, total = torch.cuda.mem_get_info()
    return float(total - free)


@torch.no_grad()
def change(models: ModelSet) -> None:
    """Move every trained weight, as an update does: the master, and from it what computes."""
    for master in models.trained_parameters().values():
        master.add_(0.1 * master.std() * torch.randn_like(master))
    round_masters(models.policy.parameters())


def test_samples_of_each_version_and_of_a_server_that_was_killed(folder: Path) -> None:
    models = models_of(folder)
    with sampler_of(models, folder, {}) as sampler:
        for number in range(3):
            change(models)
            sampler.sync(models.policy, f"v{number}")
            found = sampler.generate(requests(48), SAMPLING, number)
            assert gap(models, requests(48), found) < BF16
        [server] = sampler._servers
        assert server._process is not None
        os.kill(server._process.pid, signal.SIGKILL)
        again = sampler.generate(requests(48), SAMPLING, 2)
        same = sum(one.ids == other.ids for one, other in zip(again, found, strict=True))
        print(f"{same} of 48 completions are the same after a new start")
        assert server.starts == 2
        assert gap(models, requests(48), again) < BF16


@needs_gpu
def test_memory_is_what_was_counted(folder: Path) -> None:
    models = models_of(folder)
    memory = engine_bytes(SAMPLING, models.policy, LONGEST, models.runtime)
    before = taken()
    with sampler_of(models, folder, {}) as sampler:
        sampler.sync(models.policy, "v0")
        sampler.generate(requests(48), SAMPLING, 0)
        more, counted = taken() - before, bytes_next_to_training(memory, 1, 1, models.runtime.device)
        print(f"the server takes {more / 1e9:.2f} GB; {counted / 1e9:.2f} GB are counted")
        assert more < counted
    assert taken() - before < 0.1e9, "the memory is free again"


def test_an_adapter_alone(folder: Path) -> None:
    models = models_of(folder, {"type": "lora", "rank": 16, "alpha": 32})
    with torch.no_grad():
        for name, master in models.trained_parameters().items():
            if ".lora_B" in name:  # zero at the start
                master.normal_(0, 0.01)
    seen = set()
    with sampler_of(models, folder, {"enforce_eager": True}) as sampler:
        for number in range(3):
            change(models)
            before = COUNTS["weight_bytes"]
            sampler.sync(models.policy, f"v{number}")
            assert COUNTS["weight_bytes"] - before < adapter_bytes(models) + 20_000
            assert gap(models, requests(24), sampler.generate(requests(24), SAMPLING, number)) < BF16
            greedy = sampler.generate(requests(3), SAMPLING, 0, greedy=True)
            seen.add(tuple(tuple(completion.ids) for completion in greedy))
    assert len(seen) == 3, "each update changes what is likeliest"


def test_two_servers_on_one_device(folder: Path) -> None:
    models = models_of(folder)
    with sampler_of(models, folder, {"enforce_eager": True}, servers=2) as sampler:
        sampler.sync(models.policy, "v0")
        assert gap(models, requests(48), sampler.generate(requests(48), SAMPLING, 0)) < BF16


def test_a_mixture_is_scored_with_the_experts_of_the_server(tmp_path: Path) -> None:
    folder = mixture_folder(tmp_path)
    models, routed = models_of(folder), RoutedSampling(max_tokens=48, rows=64)
    with sampler_of(models, folder, {"enforce_eager": True}, sampling=routed) as sampler:
        for number in range(2):
            change(models)
            sampler.sync(models.policy, f"v{number}")
            found = sampler.generate(requests(48), routed, number)
            own = gap(models, requests(48), [replace(completion, experts=None) for completion in found])
            assert gap(models, requests(48), found) < min(own, BF16)


@needs_gpu
def test_products_in_eight_bits(folder: Path) -> None:
    models = models_of(folder)
    with sampler_of(models, folder, {"enforce_eager": True, "quantization": "fp8"}) as sampler:
        for number in range(2):
            change(models)
            sampler.sync(models.policy, f"v{number}")
            assert 0 < gap(models, requests(48), sampler.generate(requests(48), SAMPLING, number)) < EIGHT_BITS
