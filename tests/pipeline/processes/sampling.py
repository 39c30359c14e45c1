"""Completions that this process and others sample together; the first one writes them.

python -m tests.pipeline.processes.sampling RANK SIZE RENDEZVOUS OUT
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from posttrain.distributed import world
from posttrain.measure.counts import counts
from posttrain.models.adapters import LoraOptions
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.forward.forward import score_tokens
from posttrain.models.lora import add, freeze
from posttrain.models.sharding import gathered, mesh_of, shard
from posttrain.rollout import TokenRow
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler, RankZeroSampler
from posttrain.sampling.sampler import Completion, KeptSampling, Request, RoutedSampling, SamplingParams
from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.together import announce, follow, probe_logps
from posttrain.sampling.vllm.weights import write_lora, write_weights
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
    assert counts()["generate_tokens"] == sum(len(one.ids) for one in done), "of all processes"
    kept = [[] if one.kept is None else [one.kept.ids.tolist(), one.kept.counts.tolist()] for one in done]
    every = world.gathered(
        [[one.ids, one.logps, one.finish, one_kept] for one, one_kept in zip(done, kept, strict=True)]
    )
    assert all(one == every[0] for one in every), "all processes get the same completions"
    if world.is_rank_zero():
        Path(out).write_text(json.dumps(every[0]), encoding="utf-8")
    first = RankZeroSampler(64, _Engine(Path(out).with_suffix("")) if world.is_rank_zero() else None)
    for version in ("one", "two", "three"):  # the model is divided again in between, and the files are used again
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as seen:
            first.sync(model, version)
        largest = max(part.nbytes for part in model.parameters()) if world.is_rank_zero() else 0
        assert int(size) == 1 or most_held(seen) <= largest + 2000, "one tensor in the first process, none in others"
        assert len(first.generate(few, SamplingParams(max_tokens=4), 7)) == 1
        found = [one.experts for one in first.generate(requests, RoutedSampling(), 7)]
        for one, experts in zip(requests, found, strict=True):
            assert experts is not None and torch.equal(experts, experts_of(one))
    send_adapters(Path(out).with_suffix(""), runtime)
    world.wait_for_all()


def send_adapters(folder: Path, runtime: Runtime) -> None:
    """Write a model with an adapter: the adapter alone, the frozen model, and the merged one."""
    given = LoraOptions(rank=4, targets=["q_proj"])
    model = tiny_model()
    freeze(model, given)
    add(model, given, folder, 0)
    with torch.no_grad():
        for name, part in sorted(model.named_parameters()):
            part.fill_(0.01 * len(name)) if ".lora_" in name else None
    if world.count() > 1:  # four processes are two groups that each hold the model
        shard(model, mesh_of(runtime.device, 2), bf16=False)
    if not world.is_rank_zero():
        follow(model)
        return
    announce("whole", dtype=torch.float32)
    write_weights(model, folder, KeptFolders(folder, "merged"), "v", torch.float32).rename(folder / "merged")
    announce("frozen", dtype=torch.float32)
    kept = KeptFolders(folder, "frozen")
    write_weights(model, folder, kept, "v", torch.float32, adapter=False).rename(folder / "frozen")
    announce("lora")
    (folder / "lora").mkdir()
    write_lora(model, folder / "lora", "v", torch.float32)
    announce("probe", prompt=[3, 4], ids=[5, 6])
    (folder / "probe.json").write_text(json.dumps(probe_logps(model, [3, 4], [5, 6]).tolist()), encoding="utf-8")
    announce("done")


def most_held(seen: Any) -> int:
    """The most bytes that torch's allocator held beyond those at the start."""
    events = [one for one in seen.profiler.kineto_results.events() if one.name() == "[memory]"]
    held: list[int] = [0, *accumulate(one.nbytes() for one in sorted(events, key=lambda one: one.start_ns()))]
    return max(held)


class _Engine(LocalSampler):
    """An engine of the first process, which gets its weights as files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._kept = KeptFolders(folder)

    def sync(self, model: Any, version: str) -> None:
        announce("whole", dtype=torch.float32)
        made = write_weights(model, self._folder, self._kept, version, torch.float32)
        shutil.copytree(made, self._folder / version)

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
