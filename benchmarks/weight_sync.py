"""What it costs this process to give vLLM's servers new weights, as before this change and now.

    python -m benchmarks.weight_sync [--layers 28] [--syncs 5]

The model has the shape of Qwen3-0.6B with a tied head. Before: every tensor is converted in new memory and written to a
new file, the tied head twice. Now: into the pages of one of two kept files. No server runs; the files are in /dev/shm.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config

from posttrain.models.files.save_dtype import saved_layout, saved_tensors, unshared
from posttrain.models.files.store import new_model
from posttrain.models.files.weights import SHARD_BYTES, write_shards
from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.process import private_folder
from posttrain.sampling.vllm.weights import HEAD, write_weights

SOURCE = "model.embed_tokens.weight"
BF16 = torch.bfloat16


class Copies(TorchDispatchMode):
    """Counts the tensors of at least a megabyte that torch copies or converts, and their bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.count = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default) and found.nbytes > 1e6:
            self.count += 1
            self.bytes += found.nbytes
        return found


def before(model: Any, place: Path) -> Callable[[int], None]:
    """Return a sync that writes new files, as in the version of 28 November 2026."""
    last: list[Path] = []

    def tensors() -> Iterator[tuple[str, Tensor]]:
        pairs = saved_tensors(model, BF16, unshared(model))
        return chain.from_iterable(
            [(name, part), (HEAD, part)] if name == SOURCE else [(name, part)] for name, part in pairs
        )

    def sync(number: int) -> None:
        folder = Path(tempfile.mkdtemp(dir=place))
        layout = saved_layout(model, BF16)
        write_shards(
            tensors(), {**layout, HEAD: layout[SOURCE]}, folder, SHARD_BYTES, {"v": str(number)}, described=False
        )
        if last:
            shutil.rmtree(last.pop())
        last.append(folder)

    return sync


def now(model: Any, place: Path) -> Callable[[int], None]:
    """Return a sync as the client of vLLM's servers makes it."""
    kept = KeptFolders(place)

    def sync(number: int) -> None:
        write_weights(model, place, kept, str(number), BF16)

    return sync


def written_bytes() -> int:
    """Return the bytes that this process has given to write calls."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["wchar"])


def measured(sync: Callable[[int], None], syncs: int) -> list[dict[str, float]]:
    """Return seconds and copies of each sync."""
    found = []
    for number in range(syncs):
        start, used, sent = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF), written_bytes()
        sync(number)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        found.append(
            {
                "wall_s": time.perf_counter() - start,
                "system_s": spent.ru_stime - used.ru_stime,
                "user_s": spent.ru_utime - used.ru_utime,
                "written_gb": (written_bytes() - sent) / 1e9,
            }
        )
    with Copies() as copies:
        sync(syncs)
    return [*({name: round(value, 3) for name, value in one.items()} for one in found),
            {"copies": copies.count, "copied_gb": round(copies.bytes / 1e9, 3)}]  # fmt: skip


def main() -> None:
    """Print a line of JSON for each way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=28)
    parser.add_argument("--syncs", type=int, default=5)
    given = parser.parse_args()
    config = Qwen3Config(
        vocab_size=151_936, hidden_size=1024, num_hidden_layers=given.layers, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128, intermediate_size=3072, tie_word_embeddings=True,
    )  # fmt: skip
    model = new_model(config, 0)
    for way in (before, now):
        place = private_folder()
        try:
            for line in measured(way(model, place), given.syncs):
                print(json.dumps({"way": way.__name__, **line}), flush=True)
        finally:
            shutil.rmtree(place)


if __name__ == "__main__":
    main()
