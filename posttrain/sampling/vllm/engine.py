"""Open vLLM's servers for a model, and estimate their memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

from posttrain.distributed import world
from posttrain.errors import EngineError
from posttrain.models.adapters import weight_counts
from posttrain.models.decoder.kv_size import kv_bytes, kv_sizes
from posttrain.models.device import Runtime, free_bytes
from posttrain.models.sharding import gathered
from posttrain.sampling.distributed import RankZeroSampler
from posttrain.sampling.engines import SLEEP, Engine, EngineArgs, SampledModel, Servers
from posttrain.sampling.sampler import VLLM_CAN, RoutedSampling, Sampler, SamplingParams
from posttrain.sampling.scheduler import FREE_SHARE
from posttrain.sampling.vllm.client import EngineSampler
from posttrain.sampling.vllm.hosts import HOSTS, on_this_host, server_hosts
from posttrain.sampling.vllm.process import EngineProcess, engine_command
from posttrain.sampling.vllm.remote import remote

OWN_BYTES = 2e9
"""Memory that vLLM takes on a GPU besides weights, keys and values."""


@contextmanager
def opened(
    model: SampledModel, sampling: SamplingParams, longest: int, where: str, args: EngineArgs,
    servers: Servers = 1,
) -> Iterator[Sampler]:  # fmt: skip
    """Yield the sampler. The servers start when they first get weights, and end with this context."""
    policy, runtime = model.policy, model.runtime
    memory = gathered(policy, lambda: engine_bytes(sampling, policy, longest, runtime))  # every process runs its layers
    if not world.is_rank_zero():
        yield RankZeroSampler(longest)
        return
    gpus_of: list[list[int] | None] = [None] * servers if isinstance(servers, int) else [*servers]
    count = len(gpus_of)
    common = [
        "--dtype", "bfloat16" if runtime.bf16 else "float32", "--max-model-len", str(longest),
        "--max-num-seqs", str(-(-sampling.rows // count)), "--disable-log-stats", *own_options(args),
    ]  # fmt: skip
    common += ["--enable-return-routed-experts"] if isinstance(sampling, RoutedSampling) else []
    hosts = server_hosts(count)
    sleeps = bool(args.get(SLEEP))
    if sleeps:
        _refuse_sleep(gpus_of, hosts, where)
        common += ["--enable-sleep-mode"] if runtime.device.type == "cuda" else []
    places = [
        _place(gpus, sampling, memory, runtime, count, where, away=host is not None)
        for gpus, host in zip(gpus_of, hosts, strict=True)
    ]
    made: list[EngineProcess] = []
    for number, (options, environment) in enumerate(places):
        first = made[0] if made else None
        given = [*common, *options]
        if host := hosts[number]:
            made.append(remote().process(host, given, environment, first=first, number=number))
        else:
            made.append(EngineProcess(given, environment, first=first, number=number))
    sampler = EngineSampler(policy, model.folder, model.text.stops, runtime, made, longest=longest, sleeps=sleeps)
    try:
        yield sampler if world.count() == 1 else RankZeroSampler(longest, sampler)
    finally:
        sampler.close()


def _refuse_sleep(gpus_of: list[list[int] | None], hosts: list[str | None], where: str) -> None:
    """Raise if a server takes no memory that the training could use."""
    separate = [gpus for gpus in gpus_of if gpus is not None and not shares_a_gpu(gpus, world.count())]
    if separate or any(hosts):
        what = (
            "a server on another host" if any(hosts) else f"a server on GPUs {separate[0]}, which training does not use"
        )
        fix = "Remove it. Such servers can sample while the policy is trained: rollout.ahead 1"
        raise EngineError(
            what=f"{what} has no memory to free for training", where=f"{where}.engine_args.{SLEEP}", fix=fix
        )


def check() -> None:
    """Raise if this host lacks something that its servers, or servers on other hosts, need."""
    hosts = set(server_hosts(1 + len(os.environ.get(HOSTS, ""))))
    if None in hosts:
        engine_command()
    if hosts - {None}:
        remote().check()


def shares_a_gpu(gpus: list[int], processes: int) -> bool:
    """Tell whether a server uses a GPU of the training processes, which use the first GPUs."""
    return min(gpus) < processes


def engine_bytes(sampling: SamplingParams, policy: Any, longest: int, runtime: Runtime) -> tuple[float, float]:
    """Return bytes of a server's weights and of its KV cache: for all rows, or half of the free memory."""
    itemsize = 2 if runtime.bf16 else 4
    token, _ = kv_bytes(kv_sizes(policy), itemsize, 1)
    cache = min(float(sampling.rows * longest * token), FREE_SHARE * free_bytes(runtime.device))
    weights = float(itemsize * sum(weight_counts(policy)))
    return weights, cache if sampling.kv_gb is None else sampling.kv_gb * 1e9


def bytes_next_to_training(
    memory: tuple[float, float], servers: Servers, processes: int, device: torch.device
) -> float:
    """Return the bytes that servers use of memory shared with training. `memory`: from `engine_bytes`."""
    weights, cache = memory
    if isinstance(servers, int):
        here = len(on_this_host(range(servers)))
        return here * (weights + OWN_BYTES) + cache * here / servers
    shared = [gpus for gpus in on_this_host(servers) if device.type == "cuda" and shares_a_gpu(gpus, processes)]
    return max(((weights + cache / len(servers)) / len(gpus) + OWN_BYTES for gpus in shared), default=0.0)


def _place(
    gpus: list[int] | None, sampling: SamplingParams, memory: tuple[float, float], runtime: Runtime, servers: int,
    where: str, *, away: bool,
) -> tuple[list[str], dict[str, str]]:  # fmt: skip
    """Return vLLM's options for one server's devices and memory, and its environment. `away`: it is on another host."""
    weights, cache = memory[0], memory[1] / servers
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1"}
    options: list[str] = []
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, gpus) if away else _shown(gpus, where))
        weights, cache = weights / len(gpus), cache / len(gpus)
        options += ["--tensor-parallel-size", str(len(gpus))] if len(gpus) > 1 else []
    on_gpu = gpus is not None or runtime.device.type == "cuda"
    shared = not away and runtime.device.type == "cuda" and (gpus is None or shares_a_gpu(gpus, world.count()))
    if on_gpu and not shared:  # the share that vLLM takes
        return options if sampling.kv_gb is None else [*options, *_cache_option(cache)], environment
    if on_gpu:
        total = torch.cuda.get_device_properties(runtime.device).total_memory
        share = min((weights + cache + OWN_BYTES) / total, 0.95)
        return [*options, *_cache_option(cache), "--gpu-memory-utilization", f"{share:.3f}"], environment
    environment |= {
        "VLLM_CPU_KVCACHE_SPACE": str(max(round(cache / 2**30), 1)),
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(max(torch.get_num_threads() // servers, 1)),
        "CUDA_VISIBLE_DEVICES": "",
    }
    return ["--enforce-eager"], environment


def _cache_option(cache: float) -> list[str]:
    return ["--kv-cache-memory-bytes", str(int(cache))]


def _shown(gpus: list[int], where: str) -> list[str]:
    """Return the names of these GPUs among the GPUs visible to this run."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(number) for number in range(torch.cuda.device_count())] if given is None else given.split(",")
    if (most := max(gpus)) >= len(names):
        what = f"GPU {most} has no place among the {len(names)} that are shown to this run"
        fix = "Use GPU numbers that the run sees, from 0, or raise meta.gpus in dvc.yaml if a flow runs it"
        raise EngineError(what=what, where=f"{where}.engine_servers", fix=fix)
    return [names[gpu] for gpu in gpus]


def own_options(args: EngineArgs) -> list[str]:
    """Return vLLM settings as command-line options."""
    options: list[str] = []
    for key, value in args.items():
        if key == SLEEP:  # its own option depends on the device
            continue
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
    **dict.fromkeys(("ssl_keyfile", "ssl_certfile", "ssl_ca_certs", "runner", "convert", "hf_token"), _OURS),
    **dict.fromkeys(
        ("override_generation_config", "logits_processors"), "samples must follow the policy's own probabilities"
    ),
    "hf_overrides": "the config of the start model sets it",
    **dict.fromkeys(("enable_lora", "max_loras", "max_lora_rank", "lora_modules"), "the run's key `adapter` sets it"),
    **dict.fromkeys(("kv_cache_memory_bytes", "gpu_memory_utilization"), "sampling.kv_gb sets it"),
    "enable_return_routed_experts": "router.replay decides it",
    "dtype": "device.precision decides it",
    "max_model_len": "the longest prompt and sampling.max_tokens set it",
    "max_num_seqs": "sampling.rows decides it",
    "seed": "each completion has its own seed",
    "enable_sleep_mode": "the key `sleep` sets it",
    "trust_remote_code": "code that comes with a model is never run",
}
"""Settings of vLLM that engine_args may not contain -> why."""
ENGINES = {"vllm": Engine(VLLM_CAN, opened, check, SETS)}
