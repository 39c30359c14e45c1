"""Weight files: safetensors in the layout that the Hub has, read tensor by tensor and written in shards."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from posttrain.errors import ModelError

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
SHARD_BYTES = 5_000_000_000
FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float32}
"""The dtypes of weights in files, and what each is saved in again; eight bits are quantized and need their scales."""


class WeightFiles:
    """The tensors of a folder's safetensors files, each read from disk when it is asked for."""

    def __init__(self, folder: Path, files: Mapping[str, Any]) -> None:
        self.folder = folder
        self._files = {name: file for file in files.values() for name in file.keys()}  # noqa: SIM118 (no mapping)

    def __contains__(self, name: str) -> bool:
        return name in self._files

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def tensor(self, name: str) -> Tensor:
        """One tensor, in memory of its own."""
        part: Tensor = self._files[name].get_tensor(name)
        return part

    def later(self, name: str) -> Any:
        """One tensor that transformers reads when it needs it."""
        return self._files[name].get_slice(name)

    def dtype(self) -> torch.dtype:
        """The dtype that most of the numbers have."""
        counts: Counter[str] = Counter()
        for name in self:
            part = self.later(name)
            counts[part.get_dtype()] += torch.Size(part.get_shape()).numel()
        common = counts.most_common(1)[0][0] if counts else ""
        return FLOATS.get(common, torch.float32)


@contextlib.contextmanager
def open_weights(folder: Path) -> Iterator[WeightFiles]:
    """The folder's weight files, open as long as the context lasts."""
    index = folder / INDEX
    with contextlib.ExitStack() as stack:
        try:
            names = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {WEIGHTS}
            if any(Path(name).name != name for name in names):
                raise ValueError("its index names files outside the folder")
            # "pread" copies what it reads: a model must not live in a file that someone may overwrite.
            files = {
                name: stack.enter_context(safe_open(str(folder / name), "pt", backend="pread"))
                for name in sorted(names)
            }
            weights = WeightFiles(folder, files)
        except (OSError, SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
            fix = "Save the folder again; weights must be safetensors"
            raise ModelError(what=f"the weights cannot be read ({error})", where=str(folder), fix=fix) from error
        yield weights


def has_weights(folder: Path) -> bool:
    """Whether the folder holds a model and not only a tokenizer."""
    return (folder / INDEX).is_file() or (folder / WEIGHTS).is_file()


def write_shards(tensors: Mapping[str, Tensor], folder: Path, shard_bytes: int) -> dict[str, Any]:
    """Write the tensors as model.safetensors, or as shards with an index; what the manifest says of each tensor."""
    shards: list[list[str]] = [[]]
    filled = 0
    for name, part in tensors.items():
        if shards[-1] and filled + part.nbytes > shard_bytes:
            shards.append([])
            filled = 0
        shards[-1].append(name)
        filled += part.nbytes
    many = len(shards) > 1
    placed: dict[str, str] = {}
    described: dict[str, Any] = {}
    for number, names in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors" if many else WEIGHTS
        parts = {name: tensors[name].detach().cpu().contiguous() for name in names}
        save_file(parts, str(folder / file), metadata={"format": "pt"})
        described |= {name: describe(part) for name, part in parts.items()}
        placed |= dict.fromkeys(names, file)
    if many:
        size = sum(part.nbytes for part in tensors.values())
        index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(placed.items()))}
        (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
    return described


def describe(part: Tensor) -> dict[str, Any]:
    """Shape, dtype and digest of a tensor, as the manifest has them."""
    data = part.contiguous().flatten().view(torch.uint8).numpy().data
    return {"shape": list(part.shape), "dtype": kind(part.dtype), "sha256": hashlib.sha256(data).hexdigest()}


def digest(file: Path) -> str:
    """The digest of a file, read piece by piece."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def kind(dtype: torch.dtype) -> str:
    """The dtype's name as configs and manifests write it."""
    return str(dtype).removeprefix("torch.")
