"""Completions that this process and others sample together; the first one writes them.

python -m tests.pipeline.processes.sampling RANK SIZE RENDEZVOUS OUT
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.distributed import world
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.forward.forward import score_tokens
from posttrain.models.sharding import gathered, mesh_of, shard
from posttrain.rollout import TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler, RankZeroSampler
from posttrain.sampling.sampler import Completion, KeptSampling, Request, RoutedSampling, SamplingParams
from posttrain.sampling.vllm.weights import write_weights
from posttrain.text.packing import pack
from posttrain.text.stops import Stops
from tests.library.models.tiny import random_rows, tiny_model


def main() -> None:
    rank, size, meeting, out = sys.argv[1:]
    if int(size) > 1:
        world.connect(int(rank), int(size), meeting)
    runtime = Runtime(DeviceParams(device="cpu", precision="fp32", threads=1))
    model = tiny_model()
    if int(size) > 1:
        shard(model, mesh_of(runtime.device, None), bf16=False)
    sampler = DistributedSampler(LocalSampler(model, Stops((5, 9), lambda ids: " ".join(map(str, ids))), runtime))
    prompts, _ = random_rows(9)
    requests = [Request(prompt, f"{nth}:{sample}") for nth, prompt in enumerate(prompts) for sample in range(3)]
    rows = pack([TokenRow(prompt, (3, 4)) for prompt in prompts])

    def backward() -> None:
        gathered(model, lambda: score_tokens(model, rows))[0].sum().backward()

    few = requests[:1]  # fewer prompts than processes
    done = sampler.generate(requests, SamplingParams(max_tokens=12), 7)
    backward()
    done += sampler.generate(few, SamplingParams(), 7)
    backward()  # some processes have run no prompt since the last one
    done += sampler.generate(requests, KeptSampling(max_tokens=12, top_p=0.7), 7)
    done += sampler.generate(few, KeptSampling(top_k=3), 7)
    kept = [[] if one.kept is None else [one.kept.ids.tolist(), one.kept.counts.tolist()] for one in done]
    every = world.gathered(
        [[one.ids, one.logps, one.finish, one_kept] for one, one_kept in zip(done, kept, strict=True)]
    )
    assert all(one == every[0] for one in every), "all processes get the same completions"
    if world.is_rank_zero():
        Path(out).write_text(json.dumps(every[0]), encoding="utf-8")
    first = RankZeroSampler(64, _Engine(Path(out).with_suffix("")) if world.is_rank_zero() else None)
    for version in ("one", "two"):  # twice: the model is divided again in between
        first.sync(model, version)
        assert len(first.generate(few, SamplingParams(max_tokens=4), 7)) == 1
        found = [one.experts for one in first.generate(requests, RoutedSampling(), 7)]
        for one, experts in zip(requests, found, strict=True):
            assert experts is not None and torch.equal(experts, experts_of(one))
    world.wait_for_all()


class _Engine(LocalSampler):
    """An engine of the first process, which gets its weights as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def sync(self, model: Any, version: str) -> None:
        folder = self._folder / version
        folder.mkdir(parents=True)
        write_weights(model, folder, folder, version, torch.float32)

    def generate(self, requests: Sequence[Request], params: SamplingParams, *_: Any, **__: Any) -> list[Completion]:
        done = [Completion([1], [0.0], "stop") for _ in requests]
        if not isinstance(params, RoutedSampling):
            return done
        return [replace(one, experts=experts_of(asked)) for one, asked in zip(done, requests, strict=True)]


def experts_of(request: Request) -> Tensor:
    """Experts [tokens with one more, 3, 2] that a request alone decides."""
    return torch.tensor([*request.ids, -1], dtype=torch.int16)[:, None, None] + torch.zeros(3, 2, dtype=torch.int16)


if __name__ == "__main__":
    main()
