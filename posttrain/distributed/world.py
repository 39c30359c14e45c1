"""The processes of a run: this process's number, and communication between processes. Nothing is pickled.

Every process runs the same code on the same data, so all make the same decisions. Only the first one writes files,
judges completions and prints. The others receive from it what only it can know.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch

from posttrain.late_imports import check_not_alone, is_late
from posttrain.measure.terminal import finish_streams

PATIENCE = timedelta(hours=2)
"""How long a process waits for the others, e.g. while the first process judges completions."""

T = TypeVar("T")


def rank() -> int:
    """Return the number of this process; 0 for a single process."""
    return torch.distributed.get_rank() if _connected() else 0


def count() -> int:
    """Return the number of processes of the run."""
    return torch.distributed.get_world_size() if _connected() else 1


def is_rank_zero() -> bool:
    """Tell whether this process writes the files."""
    return rank() == 0


def connect(number: int, size: int, meeting: str, device: torch.device | str = "cpu") -> None:
    """Connect to the other processes of the run."""
    check_not_alone()
    backend = "cpu:gloo,cuda:nccl" if torch.device(device).type == "cuda" else "gloo"
    torch.distributed.init_process_group(backend, init_method=meeting, rank=number, world_size=size, timeout=PATIENCE)


def shutdown() -> None:
    """Continue with only the first process. The others end here."""
    if not _connected():
        return
    if not is_rank_zero():
        finish_streams()
        os._exit(0)
    torch.distributed.destroy_process_group()


def gathered(value: Any) -> list[Any]:
    """Return every process's JSON-compatible value, in the order of their numbers."""
    if not _connected():
        return [value]
    encoded = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    return [json.loads(part.numpy().tobytes()) for part in gathered_tensors(encoded)]


def gathered_tensors(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return every process's one-dimensional tensor. Their lengths may differ."""
    if not _connected():
        return [tensor]
    sizes = [torch.zeros(1, dtype=torch.long) for _ in range(count())]
    torch.distributed.all_gather(sizes, torch.tensor([tensor.numel()]))
    longest = max(int(size) for size in sizes)
    padded = tensor.new_zeros(longest)
    padded[: tensor.numel()] = tensor
    parts = [torch.empty_like(padded) for _ in sizes]
    torch.distributed.all_gather(parts, padded)
    return [part[: int(size)] for part, size in zip(parts, sizes, strict=True)]


def from_first(make: Callable[[], T]) -> T:
    """Return the JSON-compatible result of `make` in the first process. The others do not call it."""
    if not _connected():
        return make()
    value: T = gathered(make() if is_rank_zero() else None)[0]
    return value


def added(part: torch.Tensor) -> torch.Tensor:
    """Return the sum of the tensor over the processes, added in their order, so that all get the same bits."""
    if not _connected():
        return part
    return torch.stack(gathered_tensors(part.flatten())).sum(0).view_as(part)


def add_up(parts: Sequence[torch.Tensor]) -> None:
    """Sum each tensor over the processes, in place."""
    if _connected():
        for part in parts:
            torch.distributed.all_reduce(part)


def wait_for_all() -> None:
    """Wait until every process arrives here."""
    if _connected():
        torch.distributed.barrier()


def _connected() -> bool:
    return not is_late("torch") and torch.distributed.is_available() and torch.distributed.is_initialized()
