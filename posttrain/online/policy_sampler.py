"""What samples the policy while it is trained: the decoder of this process, or an external engine."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posttrain.models.decoder.kv_size import kv_bytes, kv_sizes
from posttrain.models.device import Runtime, free_bytes
from posttrain.models.files.text import context_of
from posttrain.models.sharding import whole
from posttrain.online.rollout_params import RolloutParams
from posttrain.processes import world
from posttrain.rollout import Prompt
from posttrain.sampling.builtin import LocalSampler
from posttrain.sampling.distributed import DistributedSampler, RankZeroSampler
from posttrain.sampling.sampler import Sampler
from posttrain.sampling.scheduler import FREE_SHARE
from posttrain.tasks.task import load_task
from posttrain.text.chat import ChatText
from posttrain.train.model_set import ModelSet

OWN_BYTES = 2e9
"""Memory that vLLM takes on a GPU apart from weights, keys and values."""


@contextmanager
def policy_sampler(
    params: RolloutParams, models: ModelSet, text: ChatText, prompts: Sequence[Prompt], folder: Path, section: str
) -> Iterator[Sampler]:
    """The sampler of `rollout.engine`; the server of an external one starts with the first weights and ends here.

    `folder`: that of the start model, for its tokenizer. `section`: of `params`, for errors.
    """
    policy, runtime = models.policy, models.runtime
    if params.engine == "builtin":
        yield DistributedSampler(LocalSampler(policy, text.stops, runtime, section=f"{section}.sampling"))
        return
    longest = max(len(prompt.ids) for prompt in prompts) + params.sampling.max_tokens
    if any(load_task(prompt.task).has_turns for prompt in prompts):
        longest = context_of(policy.config) or longest * 4
    with whole(policy):  # its layers are run once, which all processes must do
        options = _options(params, policy, longest, runtime)
    if not world.is_rank_zero():
        yield RankZeroSampler(policy)
        return
    from posttrain.sampling.vllm.client import EngineSampler
    from posttrain.sampling.vllm.process import EngineProcess

    process = EngineProcess(*options)
    sampler = EngineSampler(policy, folder, text.stops, runtime, process)
    try:
        yield sampler if world.count() == 1 else RankZeroSampler(policy, sampler)
    finally:
        sampler.close()


def engine_bytes(params: RolloutParams, policy: Any, longest: int, runtime: Runtime) -> tuple[float, float]:
    """Bytes of the server's weights, and of its keys and values: for all rows at a time, or half of the free memory."""
    itemsize = 2 if runtime.bf16 else 4
    token, _ = kv_bytes(kv_sizes(policy), itemsize, 1)
    cache = min(float(params.sampling.rows * longest * token), FREE_SHARE * free_bytes(runtime.device))
    weights = float(itemsize * sum(part.numel() for part in policy.parameters()))
    return weights, cache if params.sampling.kv_gb is None else params.sampling.kv_gb * 1e9


def _options(params: RolloutParams, policy: Any, longest: int, runtime: Runtime) -> tuple[list[str], dict[str, str]]:
    """Return the options of vLLM, and its environment: the same device and precision as the trainer."""
    sampling = params.sampling
    weights, cache = engine_bytes(params, policy, longest, runtime)
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
