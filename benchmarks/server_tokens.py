"""What a token costs the process of vLLM's server that answers requests, by what is asked for and by which route.

    POSTTRAIN_VLLM=.venv-vllm/bin/python python -m benchmarks.server_tokens [--requests 128] [--tokens 200] [--turns 5]

A small model on a CPU, 64 requests at a time. The model runs in another process, whose time is not counted. The turns
of each way are sorted: on a busy machine the least is nearest to the cost.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import torch

from posttrain.models.files.store import load_policy
from posttrain.sampling.sampler import Request, SamplingParams
from posttrain.sampling.vllm.answers import request_of
from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.process import EngineProcess
from posttrain.sampling.vllm.server import HEADER, POLICY, SAMPLES
from posttrain.sampling.vllm.weights import write_weights
from posttrain.text.stops import Stops
from tests.pipeline.engines.test_real_vllm import qwen_folder

PROMPT = [3, 4, 5]
OPTIONS = [
    "--dtype",
    "float32",
    "--max-model-len",
    "256",
    "--max-num-seqs",
    "64",
    "--disable-log-stats",
    "--enforce-eager",
]
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "",
}  # fmt: skip
Ask = Callable[[int], tuple[str, dict[str, Any]]]


def ways(tokens: int) -> dict[str, Ask]:
    """Return the ways to ask for a completion: name -> (number of the request -> path and body)."""
    params = SamplingParams(max_tokens=tokens)

    def completions(number: int, **more: Any) -> tuple[str, dict[str, Any]]:
        body = {
            "model": POLICY, "n": 1, "prompt": PROMPT, "max_tokens": tokens, "temperature": 1.0, "top_p": 1.0,
            "top_k": 0, "seed": number, "return_token_ids": True, "ignore_eos": True, "skip_special_tokens": False,
            "spaces_between_special_tokens": False, **more,
        }  # fmt: skip
        return "/v1/completions", body

    def samples(number: int, **more: Any) -> tuple[str, dict[str, Any]]:
        body = request_of(Request(PROMPT, str(number)), number, params, Stops((), str), POLICY, str(number))
        return SAMPLES, {**body, "sampling": {**body["sampling"], **more}}

    def scale_out(number: int) -> tuple[str, dict[str, Any]]:
        _, body = samples(number, flat_logprobs=True)
        return "/inference/v1/generate", {"model": POLICY, "token_ids": PROMPT, "sampling_params": body["sampling"]}

    return {
        "vLLM's completions, text and log-probs (before)": lambda number: completions(number, logprobs=0),
        "vLLM's completions, text": completions,
        "vLLM's token route, log-probs": scale_out,
        "posttrain's route, text and log-probs": lambda number: samples(number, detokenize=True),
        "posttrain's route, log-probs (now)": samples,
        "posttrain's route, tokens alone": lambda number: samples(number, logprobs=None),
    }


async def asked(socket: Path, ask: Ask, count: int) -> list[Any]:
    """Return the answers to `count` requests, 64 at a time."""
    slots = asyncio.Semaphore(64)
    transport = httpx.AsyncHTTPTransport(uds=str(socket))
    async with httpx.AsyncClient(transport=transport, timeout=None, headers={HEADER: "v0"}) as client:

        async def one(number: int) -> Any:
            path, body = ask(number)
            async with slots:
                answer = await client.post(f"http://engine{path}", json=body)
            answer.raise_for_status()
            return answer.json()

        return await asyncio.gather(*(one(number) for number in range(count)))


def measured(server: EngineProcess, pid: int, ask: Ask, given: argparse.Namespace) -> float:
    """Return the microseconds of processor time of a token."""
    asyncio.run(asked(server.socket, ask, 8))
    process = psutil.Process(pid)
    before = process.cpu_times()
    asyncio.run(asked(server.socket, ask, given.requests))
    after = process.cpu_times()
    spent = after.user + after.system - before.user - before.system
    return 1e6 * spent / (given.requests * given.tokens)


def main() -> None:
    """Start a server and measure each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--turns", type=int, default=5)
    given = parser.parse_args()
    server = EngineProcess([*OPTIONS, "--enable-scale-out"], ENVIRONMENT)
    try:
        with tempfile.TemporaryDirectory() as place:
            folder = qwen_folder(Path(place))
            weights = write_weights(load_policy(folder), folder, KeptFolders(server.folder), "v0", torch.float32)
        pid = server.start(weights)["pid"]
        found: dict[str, list[float]] = {}
        for _ in range(given.turns):
            for name, ask in ways(given.tokens).items():
                found.setdefault(name, []).append(measured(server, pid, ask, given))
        for name, values in found.items():
            print(json.dumps({"way": name, "us_a_token": [round(value, 1) for value in sorted(values)]}))
    finally:
        server.close()


if __name__ == "__main__":
    main()
