"""Weight files: safetensors in the Hub's layout, read tensor by tensor and written in shards."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from posttrain.errors import ModelError

WEIGHTS = "model.safetensors"
INDEX = f"{WEIGHTS}.index.json"
SHARD_BYTES = 5_000_000_000
FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16, "F64": torch.float32}
"""Dtype in files -> dtype for saving. 8-bit weights are quantized and need their scales."""

STORED = {
    torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
    torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64",
}  # fmt: skip
"""The dtypes that are written, in safetensors' order. Files begin with the last."""


class WeightFiles:
    """The tensors of a folder's safetensors files. Each is read from disk on request."""

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
        """Return one tensor as a copy in its own memory."""
        part: Tensor = self._files[name].get_tensor(name)
        return part

    def later(self, name: str) -> Any:
        """Return one tensor that transformers reads on use."""
        return self._files[name].get_slice(name)

    def dtype(self) -> torch.dtype:
        """Return the dtype that most numbers have."""
        counts: Counter[str] = Counter()
        for name in self:
            part = self.later(name)
            counts[part.get_dtype()] += torch.Size(part.get_shape()).numel()
        common = counts.most_common(1)[0][0] if counts else ""
        return FLOATS.get(common, torch.float32)


@contextlib.contextmanager
def open_weights(folder: Path) -> Iterator[WeightFiles]:
    """Yield the folder's weight files, open within the context."""
    index = folder / INDEX
    with contextlib.ExitStack() as stack:
        try:
            names = set(json.loads(index.read_text())["weight_map"].values()) if index.is_file() else {WEIGHTS}
            if any(Path(name).name != name for name in names):
                raise ValueError("its index lists files outside the folder")
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
    """Tell whether the folder contains a model and not only a tokenizer."""
    return (folder / INDEX).is_file() or (folder / WEIGHTS).is_file()


def spans_of(tensors: Mapping[str, Tensor]) -> tuple[dict[str, tuple[int, int]], int]:
    """Return the start and end of each tensor's bytes in a file's data, in safetensors' order, and the total size."""
    ranks = {dtype: place for place, dtype in enumerate(STORED)}
    spans: dict[str, tuple[int, int]] = {}
    end = 0
    for name in sorted(tensors, key=lambda name: (-ranks[tensors[name].dtype], name)):
        spans[name] = end, (end := end + tensors[name].nbytes)
    return spans, end


def header_bytes(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """Return the JSON header of a safetensors file."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    for name, span in spans_of(tensors)[0].items():
        part = tensors[name]
        header[name] = {"dtype": STORED[part.dtype], "shape": list(part.shape), "data_offsets": [*span]}
    return json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()


class TensorFile:
    """A safetensors file written tensor by tensor in any order, with the same bytes as safetensors' `save_file`.

    So at most one tensor at a time is copied from a device or converted to another dtype.
    """

    def __init__(self, file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> None:
        """`tensors`: names, shapes and dtypes. Their values are not read."""
        header = header_bytes(tensors, metadata)
        header += b" " * (-len(header) % 8)
        spans, end = spans_of(tensors)
        self._starts = {name: 8 + len(header) + start for name, (start, _) in spans.items()}
        self._file = file.open("wb")
        self._file.write(len(header).to_bytes(8, "little") + header)
        self._file.truncate(8 + len(header) + end)

    def __enter__(self) -> TensorFile:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def write(self, name: str, part: Tensor) -> None:
        """Write one tensor to its place."""
        self._file.seek(self._starts[name])
        self._file.write(_bytes(part.detach().cpu()))


def write_shards(
    tensors: Iterable[tuple[str, Tensor]],
    layout: Mapping[str, Tensor],
    folder: Path,
    shard_bytes: int,
    metadata: Mapping[str, str] | None = None,
    *,
    described: bool = True,
) -> dict[str, Any]:
    """Write the tensors as model.safetensors, or as shards with an index. Return the manifest's entries for them.

    `layout` has the same names, shapes and dtypes without values, so that `tensors` is read only once. `metadata` is
    added to each file's own. `described`: False if the digests are not needed, because they take as long as writing.
    """
    shards = shards_of(layout, shard_bytes)
    described_tensors: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:
        files: dict[str, TensorFile] = {}
        for file, shard in shards.items():
            opened = stack.enter_context(TensorFile(folder / file, shard, {"format": "pt", **(metadata or {})}))
            files |= dict.fromkeys(shard, opened)
        for name, part in tensors:
            files[name].write(name, part)
            described_tensors[name] = describe(part) if described else {}
    if described_tensors.keys() != layout.keys():
        raise RuntimeError(f"not written: {sorted(layout.keys() - described_tensors.keys())}")
    write_index(shards, folder)
    return described_tensors


def shards_of(layout: Mapping[str, Tensor], shard_bytes: int) -> dict[str, dict[str, Tensor]]:
    """Return the tensors of each file of at most `shard_bytes`, by the file's name."""
    shards: list[dict[str, Tensor]] = [{}]
    filled = 0
    for name, part in layout.items():
        if shards[-1] and filled + part.nbytes > shard_bytes:
            shards.append({})
            filled = 0
        shards[-1][name] = part
        filled += part.nbytes
    if len(shards) == 1:
        return {WEIGHTS: shards[0]}
    return {f"model-{number:05d}-of-{len(shards):05d}.safetensors": shard for number, shard in enumerate(shards, 1)}


def write_index(shards: Mapping[str, Mapping[str, Tensor]], folder: Path) -> None:
    """Write the index of several files; write nothing for one file."""
    if len(shards) == 1:
        return
    size = sum(part.nbytes for shard in shards.values() for part in shard.values())
    placed = {name: file for file, shard in shards.items() for name in shard}
    index = {"metadata": {"total_size": size}, "weight_map": dict(sorted(placed.items()))}
    (folder / INDEX).write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")


def describe(part: Tensor) -> dict[str, Any]:
    """Return shape, dtype and digest of a tensor for the manifest."""
    digest = hashlib.sha256(_bytes(part)).hexdigest()
    return {"shape": list(part.shape), "dtype": kind(part.dtype), "sha256": digest}


def _bytes(part: Tensor) -> memoryview:
    """Return the bytes of a tensor in host memory, without a copy if it is contiguous."""
    data: memoryview = part.contiguous().flatten().view(torch.uint8).numpy().data
    return data


def digest(file: Path) -> str:
    """Return the digest of a file, read piece by piece."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def kind(dtype: torch.dtype) -> str:
    """Return the dtype's name in configs and manifests."""
    return str(dtype).removeprefix("torch.")
