"""Runs with an adapter sample through a server: it gets the adapter alone where vLLM takes it, else merged matrices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from posttrain.measure.counts import COUNTS
from posttrain.models.adapters import adapted_layers
from posttrain.models.files.store import load_model, load_tokenizer
from posttrain.models.forward.forward import score_tokens
from posttrain.rollout import token_rows
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import SamplingParams
from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.process import EngineProcess
from posttrain.sampling.vllm.weights import lora_rank, write_weights
from posttrain.settings.params import check
from posttrain.text.chat import ChatText
from posttrain.text.packing import pack
from posttrain.train.loop import TrainingParams
from posttrain.train.model_set import ModelSet
from tests.library.models.families import hub_folder
from tests.library.models.tiny import random_rows, tiny_folder
from tests.pipeline.engines.support import DEVICE, engine, use_server
from tests.pipeline.engines.test_engine import requests

ROWS = token_rows(*random_rows(6))
ALONE: list[dict[str, Any]] = [{}, {"rslora": True}, {"targets": ["q_proj", "down_proj"]}]
MERGED: list[dict[str, Any]] = [{"type": "dora"}, {"type": "qlora"}, {"type": "qlora", "targets": ["q_proj"]}]


def adapted(folder: Path, options: dict[str, Any]) -> ModelSet:
    """A policy with an adapter that is still zero."""
    given = {"adapter": {"type": "lora", "rank": 4, "alpha": 8, **options}}
    return ModelSet.load(DEVICE, folder, frozenset(), check(TrainingParams, given, where="test"))


@torch.no_grad()
def update(models: ModelSet, seed: int) -> None:
    """Change every trained weight."""
    drawn = torch.Generator().manual_seed(seed)
    for name, part in sorted(models.trained_parameters().items()):
        change = torch.randn(part.shape, generator=drawn)
        part.mul_(1 + 0.1 * change) if "magnitude" in name else part.add_(0.1 * change)


def adapter_bytes(models: ModelSet) -> int:
    return sum(part.nbytes for part in models.trained_parameters().values())


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "gemma3_text"])
@pytest.mark.parametrize("options", [*ALONE[:1], *MERGED[:2]], ids=str)
def test_what_is_sent_is_the_model_that_is_trained(family: str, options: dict[str, Any], tmp_path: Path) -> None:
    models = adapted(hub_folder(family, tmp_path / "model"), options)
    update(models, 0)
    for adapter in (True, False) if lora_rank(models.policy) else (True,):
        kept = KeptFolders(tmp_path, f"sent-{adapter}")
        sent = write_weights(models.policy, tmp_path, kept, "a", torch.float32, adapter=adapter)
        with torch.no_grad():
            theirs = score_tokens(load_model(sent), pack(ROWS))[0]
            ours = score_tokens(models.policy, pack(ROWS))[0]
        same = bool((theirs - ours).abs().max() < 1e-4)
        assert same == adapter, "the frozen model is another one"


@pytest.mark.slow
@pytest.mark.parametrize("options", [*ALONE, *MERGED], ids=str)
def test_completions_of_each_update_are_those_of_the_adapted_model(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_server(monkeypatch, tmp_path)
    folder = tiny_folder(tmp_path)
    models, process = adapted(folder, options), EngineProcess([], {})
    ours = LocalSampler(models.policy, ChatText(load_tokenizer(folder)).stops, models.runtime)
    theirs = engine(models, folder, process)
    alone = options in ALONE
    assert (lora_rank(models.policy) is not None) == alone
    sampling, seen = SamplingParams(max_tokens=12), set()
    try:
        for number in range(4):
            before = COUNTS["weight_bytes"]
            theirs.sync(models.policy, f"v{number}")
            sent = COUNTS["weight_bytes"] - before
            for greedy in (True, False):
                mine = ours.generate(requests(9), sampling, number, greedy=greedy)
                found = theirs.generate(requests(9), sampling, number, greedy=greedy)
                assert [one.ids for one in found] == [one.ids for one in mine]
                for one, other in zip(found, mine, strict=True):
                    assert one.logps == pytest.approx(other.logps, abs=1e-4)
            seen.add(tuple(found[0].logps))
            if alone:
                assert adapter_bytes(models) < sent < adapter_bytes(models) + 20_000, "names and settings come with it"
            else:
                assert (
                    sent > sum(layer.in_features * layer.out_features for _, layer in adapted_layers(models.policy)) * 4
                )
            update(models, number)
        assert len(seen) == 4 and process.starts == 1
    finally:
        theirs.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("faults", "environment", "why"),
    [
        ("", {"ENGINE_WITHOUT_ADAPTERS": "1"}, "vLLM cannot take this adapter"),
        ("500@1,500@2,500@3,500@4", {}, "1 of 1 completions were not answered in 4 tries (HTTP 500"),
    ],
)
def test_an_adapter_that_vllm_does_not_take_is_merged(
    faults: str,
    environment: dict[str, str],
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It says so when it starts, or fails at the first sample, as vLLM 0.30 does with a mixture on a CPU."""
    use_server(monkeypatch, tmp_path, faults, **environment)
    folder = tiny_folder(tmp_path)
    models, process = adapted(folder, {}), EngineProcess([], {})
    ours = LocalSampler(models.policy, ChatText(load_tokenizer(folder)).stops, models.runtime)
    theirs = engine(models, folder, process)
    try:
        for number in range(2):
            update(models, number)
            theirs.sync(models.policy, f"v{number}")
            mine, found = (one.generate(requests(9), SamplingParams(max_tokens=12), 1) for one in (ours, theirs))
            assert [one.ids for one in found] == [one.ids for one in mine]
    finally:
        theirs.close()
    assert process.starts == 2
    said = capfd.readouterr().out
    assert said.count("the adapter is merged into the model for each round, since ") == 1
    assert why in said
