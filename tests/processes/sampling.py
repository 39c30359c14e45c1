"""Completions that this process and others sample together; the first one writes them.

python -m tests.processes.sampling RANK SIZE RENDEZVOUS OUT
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from posttrain import processes
from posttrain.models.device import DeviceParams, Runtime
from posttrain.models.sharding import mesh_of, shard
from posttrain.sampling.dealt import DealtSampler
from posttrain.sampling.local import LocalSampler
from posttrain.sampling.sampler import Request, SamplingParams
from posttrain.text.stops import Stops
from tests.library.models import random_rows, tiny_model


def main() -> None:
    rank, size, meeting, out = sys.argv[1:]
    if int(size) > 1:
        processes.connect(int(rank), int(size), meeting)
    runtime = Runtime(DeviceParams(device="cpu", precision="fp32", threads=1))
    model = tiny_model()
    if int(size) > 1:
        shard(model, mesh_of(runtime.device, None), bf16=False)
    sampler = DealtSampler(LocalSampler(model, Stops((5, 9), lambda ids: " ".join(map(str, ids))), runtime))
    prompts, _ = random_rows(9)
    requests = [Request(prompt, f"{nth}:{sample}") for nth, prompt in enumerate(prompts) for sample in range(3)]
    few = requests[:1]  # fewer prompts than processes
    done = [*sampler.generate(requests, SamplingParams(max_tokens=12), 7), *sampler.generate(few, SamplingParams(), 7)]
    every = processes.gathered([[one.ids, one.logps, one.finish] for one in done])
    assert all(one == every[0] for one in every), "all processes get the same completions"
    if processes.is_first():
        Path(out).write_text(json.dumps(every[0]), encoding="utf-8")
    processes.wait_for_all()


if __name__ == "__main__":
    main()
