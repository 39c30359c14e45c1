"""Notes from `check` about runs with several processes. They may be intended for another host."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping
from typing import Any

from posttrain.errors import PosttrainError
from posttrain.pipeline.lock.graph import Pipeline
from posttrain.pipeline.params.stage_table import STAGES
from posttrain.pipeline.processes.schedulers import LAUNCH
from posttrain.sampling.vllm.hosts import on_this_host


def process_notes(typed: Mapping[str, Any]) -> list[str]:
    """Return notes on what this host lacks for the processes of runs. `typed`: the runs' settings."""
    runs: dict[str, list[str]] = {}
    for where, params in typed.items():
        for line in _notes(where, params):
            runs.setdefault(line, []).append(where)
    return [f"note: {', '.join(where)}: {line}" for line, where in runs.items()]


def _notes(where: str, params: Any) -> Iterator[str]:
    processes, served = getattr(params, "processes", 1), _served_gpus(params)
    if processes == 1 and getattr(params, "shards", None):
        yield f"shards = {params.shards} changes nothing with processes = 1"
    if (rows := _step_rows(params)) < processes:
        yield f"processes = {processes}, more than the rows of a step ({rows}): some have nothing to do"
    threads = params.device.threads if processes == 1 and hasattr(params, "device") else 1
    if threads > (cores := os.cpu_count() or 1) and not os.environ.get(LAUNCH):
        yield f"device.threads = {threads}: this host has {cores} CPU cores, and more threads than cores are slower"
    if (processes == 1 and not served) or os.environ.get(LAUNCH):  # they run elsewhere
        return
    shown = together = f"processes = {processes}"
    gpus, cores = _gpus(params.device.device), os.cpu_count() or 1
    if served > (0 if gpus is None else processes):
        shown = f"engine_servers names GPU {served - 1}"
        if served > (there := _gpus("cuda") or 0):
            yield f"{shown}: this host has {there} GPUs"
    if gpus is not None and processes > gpus:
        yield f"{together}: this host has {gpus} GPUs, and each process needs one"
    if gpus is None and processes > 1 and processes * params.device.threads > cores:
        yield f"{together}, each with device.threads = {params.device.threads}: this host has {cores} CPU cores"
    group, _, run = where.rpartition(".")
    stage = next(entry.sampled_by or entry.name for entry in STAGES if entry.group == group)
    try:
        reserved = Pipeline().declared(f"{stage}@{run}").meta.get("gpus")
    except PosttrainError:  # there is no dvc.yaml, or the check itself reports it
        return
    if isinstance(reserved, int) and 0 < reserved < max(processes, served):
        yield f"{shown}: meta.gpus = {reserved} of the stage {stage} in dvc.yaml, so a flow shows it no more GPUs"


def _step_rows(params: Any) -> float:
    """Return the most rows of an optimizer step; infinite if the run has no steps."""
    rollout = getattr(params, "rollout", None)
    if rollout is not None and hasattr(rollout, "group_size"):
        return int(rollout.prompts * rollout.group_size // getattr(rollout, "minibatches", 1))
    return getattr(params, "batch", math.inf)


def _served_gpus(params: Any) -> int:
    """Return the number of GPUs up to the last one that an engine's servers use on this host, counted from GPU 0."""
    servers = getattr(getattr(params, "rollout", params), "engine_servers", 1)
    return max((1 + max(gpus) for gpus in on_this_host(servers)), default=0) if isinstance(servers, list) else 0


def _gpus(device: str) -> int | None:
    """Return the number of GPUs; None if the run does not use them."""
    import torch

    uses_cuda = device == "cuda" or (device == "auto" and torch.cuda.is_available())
    return torch.cuda.device_count() if uses_cuda else None
