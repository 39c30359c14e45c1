"""Opens vLLM's server for a model, and the memory that it takes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from posttrain.models.adapters import weight_counts
from posttrain.models.decoder.kv_size import kv_bytes, kv_sizes
from posttrain.models.device import Runtime, free_bytes
from posttrain.models.sharding import whole
from posttrain.processes import world
from posttrain.sampling.distributed import RankZeroSampler
from posttrain.sampling.engines import Engine, EngineArgs, SampledModel
from posttrain.sampling.sampler import VLLM_CAN, Sampler, SamplingParams
from posttrain.sampling.scheduler import FREE_SHARE
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.process import EngineProcess, engine_command

OWN_BYTES = 2e9
"""Memory that vLLM takes on a GPU apart from weights, keys and values."""


@contextmanager
def opened(
    model: SampledModel, sampling: SamplingParams, longest: int, where: str, args: EngineArgs,  # noqa: ARG001
) -> Iterator[Sampler]:  # fmt: skip
    """Yield the sampler; the server starts with the first weights that it is given and ends here."""
    policy, runtime = model.policy, model.runtime
    with whole(policy):  # its layers are run once, which all processes must do
        options, environment = _options(sampling, policy, longest, runtime)
    if not world.is_rank_zero():
        yield RankZeroSampler(longest)
        return
    process = EngineProcess([*options, *own_options(args)], environment)
    sampler = EngineSampler(policy, model.folder, model.text.stops, runtime, process, longest=longest)
    try:
        yield sampler if world.count() == 1 else RankZeroSampler(longest, sampler)
    finally:
        sampler.close()


def engine_bytes(sampling: SamplingParams, policy: Any, longest: int, runtime: Runtime) -> tuple[float, float]:
    """Bytes of the server's weights, and of its keys and values: for all rows at a time, or half of the free memory."""
    itemsize = 2 if runtime.bf16 else 4
    token, _ = kv_bytes(kv_sizes(policy), itemsize, 1)
    cache = min(float(sampling.rows * longest * token), FREE_SHARE * free_bytes(runtime.device))
    weights = float(itemsize * sum(weight_counts(policy)))
    return weights, cache if sampling.kv_gb is None else sampling.kv_gb * 1e9


def _options(sampling: SamplingParams, policy: Any, longest: int, runtime: Runtime) -> tuple[list[str], dict[str, str]]:
    """Return the options of vLLM, and its environment: the same device and precision as the trainer."""
    weights, cache = engine_bytes(sampling, policy, longest, runtime)
    options = [
        "--dtype", "bfloat16" if runtime.bf16 else "float32", "--max-model-len", str(longest),
        "--max-num-seqs", str(sampling.rows), "--disable-log-stats",
    ]  # fmt: skip
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    if runtime.device.type == "cuda":
        total = torch.cuda.get_device_properties(runtime.device).total_memory
        share = min((weights + cache + OWN_BYTES) / total, 0.95)
        options += ["--kv-cache-memory-bytes", str(int(cache)), "--gpu-memory-utilization", f"{share:.3f}"]
        return options, environment
    threads = torch.get_num_threads()
    environment |= {
        "VLLM_CPU_KVCACHE_SPACE": str(max(round(cache / 2**30), 1)),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(threads),
        "CUDA_VISIBLE_DEVICES": "",
    }
    return [*options, "--enforce-eager"], environment


def own_options(args: EngineArgs) -> list[str]:
    """Return settings of vLLM as options of its command."""
    options: list[str] = []
    for key, value in args.items():
        if isinstance(value, bool):
            options += [f"--{key}" if value else f"--no-{key}"]
        elif isinstance(value, list):
            options += [f"--{key}", *map(str, value)]
        else:
            options += [f"--{key}={json.dumps(value) if isinstance(value, dict) else value}"]
    return options


_OURS = "posttrain sets it"
SETS: Final = {
    **dict.fromkeys(
        ("model", "tokenizer", "uds", "host", "port", "served_model_name", "middleware", "api_key", "config"), _OURS
    ),
    **dict.fromkeys(("logprobs_mode", "generation_config", "disable_log_stats", "disable_uvicorn_access_log"), _OURS),
    **dict.fromkeys(
        ("enable_lora", "max_loras", "max_lora_rank", "lora_modules"), "the key adapter of the run decides it"
    ),
    **dict.fromkeys(("kv_cache_memory_bytes", "gpu_memory_utilization"), "sampling.kv_gb decides it"),
    "dtype": "device.precision decides it",
    "max_model_len": "the longest prompt and sampling.max_tokens decide it",
    "max_num_seqs": "sampling.rows decides it",
    "seed": "each completion has a seed of its own",
    "trust_remote_code": "code that comes with a model is never run",
}
"""Settings of vLLM that are not in engine_args, and why."""
ENGINES = {"vllm": Engine(VLLM_CAN, opened, engine_command, SETS)}
