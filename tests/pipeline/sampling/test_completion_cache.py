"""The cache of completions: what decides them decides whether they are found, and what is found is what was sampled."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.kills import prepared
from benchmarks.faults.processes import Server
from posttrain.files import remove_oldest
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.files.store import load_model, load_tokenizer
from posttrain.pipeline.runs import completion_cache as cache
from posttrain.pipeline.runs.completion_cache import CachedSampler
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.sampler import Completion, Mixture, Request, SamplingParams
from posttrain.text.chat import ChatText
from tests.library.models.tiny import tiny_folder

PARAMS = SamplingParams(max_tokens=8)
REQUESTS = [Request([5, 6 + nth], f"p{nth}:0") for nth in range(6)]
FILES = Path(".dvc/tmp/completions")


class Counted(LocalSampler):
    """Counts the completions that the model samples."""

    sampled = 0

    def generate(self, requests: Any, *arguments: Any, **options: Any) -> list[Completion]:
        self.sampled += len(requests)
        return super().generate(requests, *arguments, **options)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    Path(".dvc/tmp").mkdir(parents=True)
    return tiny_folder(tmp_path / "tiny")


def sampler_of(folder: Path, threads: int = 1) -> tuple[CachedSampler, Counted]:
    device = DeviceParams(threads=threads)
    inner = Counted(load_model(folder), ChatText(load_tokenizer(folder)).stops, Runtime(device))
    return CachedSampler(inner, folder, device.model_dump(), "test"), inner


@pytest.mark.slow
def test_the_same_requests_are_sampled_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, inner = sampler_of(folder)
    expected = first.generate(REQUESTS, PARAMS, 0)
    again, other = sampler_of(folder)
    counted: list[int] = []
    assert again.generate(REQUESTS, PARAMS, 0, advance=counted.append) == expected
    assert (inner.sampled, other.sampled, sum(counted)) == (6, 0, 6)
    assert "test: 6 completions from the cache" in capsys.readouterr().out

    renamed = [replace(REQUESTS[0], name="p0:1"), *REQUESTS[1:]]
    longer = [replace(REQUESTS[0], ids=[5, 6, 7]), *REQUESTS[1:]]
    for requests, params, seed, options in (
        (renamed, PARAMS, 0, {}),
        (longer, PARAMS, 0, {}),
        (REQUESTS[1:], PARAMS, 0, {}),
        (REQUESTS, SamplingParams(max_tokens=7), 0, {}),
        (REQUESTS, SamplingParams(max_tokens=8, rows=3), 0, {}),
        (REQUESTS, PARAMS, 1, {}),
        (REQUESTS, PARAMS, 0, {"greedy": True}),
        (REQUESTS, PARAMS, 0, {"mixture": Mixture(load_model(folder), 0.5)}),
    ):
        before = other.sampled
        again.generate(requests, params, seed, **options)  # type: ignore[arg-type]
        assert other.sampled == before + len(requests)
    again.sync(load_model(folder), "trained")
    before = other.sampled
    again.generate(REQUESTS, PARAMS, 0)
    assert other.sampled == before + 6, "weights that no folder has were taken for those of the folder"


@pytest.mark.slow
def test_another_model_or_device_is_sampled_again(folder: Path, tmp_path: Path) -> None:
    expected = sampler_of(folder)[0].generate(REQUESTS, PARAMS, 0)
    copied = Path(shutil.copytree(folder, tmp_path / "copy"))
    same, inner = sampler_of(copied)
    assert same.generate(REQUESTS, PARAMS, 0) == expected and inner.sampled == 0
    (copied / "generation_config.json").write_text('{"eos_token_id": 1, "temperature": 0.5}')
    for other in (sampler_of(copied), sampler_of(folder, threads=2)):
        other[0].generate(REQUESTS, PARAMS, 0)
        assert other[1].sampled == 6
    sampler_of(folder)  # one thread again


def test_a_damaged_file_is_sampled_again_and_the_cache_is_bounded(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler, inner = sampler_of(folder)
    expected = sampler.generate(REQUESTS, PARAMS, 0)
    (file,) = FILES.glob("*.parquet")
    data = bytearray(file.read_bytes())
    data[40] ^= 1
    file.write_bytes(bytes(data))
    assert sampler.generate(REQUESTS, PARAMS, 0) == expected and inner.sampled == 12
    monkeypatch.setattr(cache, "CACHE_BYTES", 10)
    sampler.generate(REQUESTS, PARAMS, 1)
    assert len(list(FILES.glob("*.parquet"))) == len(list(FILES.glob("*.md5"))) == 1
    assert not [one for one in FILES.iterdir() if one.name.startswith(".")]


@pytest.mark.slow
def test_evaluating_again_samples_nothing(stage_server: Server, smoke_workspace: Path, tmp_path: Path) -> None:
    workspace = prepared(smoke_workspace, tmp_path / "w")
    (workspace / ".dvc/tmp").mkdir(parents=True)
    params, results = workspace / "params.yaml", workspace / "results/sft"
    outputs, found = [], []
    measured = "{correct: 1.0}, metrics: [format]"
    for reward in (measured, measured, "{correct: 1.0, format: 0.5}"):
        text = params.read_text().split("  settings: {data: two_step/prompts")[0]
        settings = "data: two_step/prompts, reference: sft/main, reward_model: none, prompts: 20, samples: 2"
        params.write_text(f"{text}  settings: {{{settings}, reward: {reward}}}\n  policies: {{sft: sft/main}}\n")
        for stage in ("completions sft", "evaluate sft"):
            ended = stage_server.run(workspace, stage)
            assert ended.status == 0, ended.output
            outputs.append(ended.output)
        found.append([(results / name).read_bytes() for name in ("rollouts.parquet", "metrics.json")])
    assert "from the cache" not in outputs[0]
    assert all("evaluate.settings: 40 completions from the cache" in one for one in outputs[2::2])
    assert found[0] == found[1] != found[2]


def test_a_cache_is_trimmed_although_another_process_trims_it_too(tmp_path: Path) -> None:
    for name, size in (("old", 10), ("new", 10)):
        (tmp_path / f"{name}.bin").write_bytes(b"0" * size)
    os.utime(tmp_path / "old.bin", (1, 1))
    (tmp_path / "gone.bin").symlink_to(tmp_path / "removed between the listing and the look")
    remove_oldest(tmp_path / "new.bin", 15)
    assert (tmp_path / "new.bin").exists() and not (tmp_path / "old.bin").exists()
