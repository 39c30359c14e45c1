"""Weight files that are overwritten in the same memory pages, so that a new version needs no new memory.

Two folders take turns, so the folder that a server may still read is never written. A folder that is being written has
another name and files without a header, so that no server can load half of a version.
"""

from __future__ import annotations

import mmap
import os
import secrets
import shutil
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from posttrain.errors import EngineError
from posttrain.models.files.weights import SHARD_BYTES, header_bytes, shards_of, spans_of, write_index

PAGE: Final = 4096
SPARE: Final = 512
"""Bytes of a header that are left for longer versions. A still longer version gets new files."""
PIECE: Final = 2**24
"""The bytes that are copied from a GPU at a time."""


class KeptFile:
    """A safetensors file whose tensors are this process's memory."""

    def __init__(self, file: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        """`tensors`: names, shapes and dtypes. Their values are not read."""
        self._tensors = tensors
        spans, size = spans_of(tensors)
        self._begin = -(-(8 + len(header_bytes(tensors, metadata)) + SPARE) // PAGE) * PAGE
        with file.open("w+b") as stream:
            if hasattr(os, "posix_fallocate"):  # without pages, a later write to memory would kill the process
                os.posix_fallocate(stream.fileno(), 0, self._begin + size)
            else:
                stream.truncate(self._begin + size)
            self._map = mmap.mmap(stream.fileno(), self._begin + size)
        data = torch.frombuffer(self._map, dtype=torch.uint8)
        self.places: dict[str, Tensor] = {}
        for name, (start, end) in spans.items():
            self.places[name] = data[self._begin + start : self._begin + end].view(tensors[name].dtype)

    def invalidate(self) -> None:
        """Remove the header, so that the file cannot be loaded."""
        self._map[:8] = bytes(8)

    def fits(self, metadata: Mapping[str, str]) -> bool:
        """Tell whether there is room for a header with this metadata."""
        return 8 + len(header_bytes(self._tensors, metadata)) <= self._begin

    def complete(self, metadata: Mapping[str, str]) -> None:
        """Write the header."""
        size = self._begin - 8
        self._map[8 : self._begin] = header_bytes(self._tensors, metadata).ljust(size)
        self._map[:8] = size.to_bytes(8, "little")


class KeptFolder:
    """A folder with the files of one version of the weights."""

    def __init__(self, folder: Path, layout: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
        self.folder, self._layout = folder, dict(layout)
        folder.mkdir(mode=0o700)
        needed, free = sum(part.nbytes for part in layout.values()), shutil.disk_usage(folder).free
        if needed > free:
            what = f"the weights take {needed / 1e9:.3g} GB, but {free / 1e9:.3g} GB are free"
            fix = "Enlarge it (in a container: --shm-size; two versions have to fit), or use rollout.engine builtin"
            raise EngineError(what=what, where=str(folder.parent), fix=fix)
        shards = shards_of(layout, SHARD_BYTES)
        self._files = [KeptFile(folder / name, shard, metadata) for name, shard in shards.items()]
        self._places = {name: place for file in self._files for name, place in file.places.items()}
        write_index(shards, folder)

    def takes(self, layout: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bool:
        """Tell whether tensors with this layout can be written here."""
        ours = {name: (part.dtype, part.shape) for name, part in self._layout.items()}
        same = ours == {name: (part.dtype, part.shape) for name, part in layout.items()}
        return same and all(file.fits(metadata) for file in self._files)

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], same: Mapping[str, str], metadata: Mapping[str, str],
        buffer: Tensor | None,
    ) -> Tensor | None:  # fmt: skip
        """Write all tensors, then the headers. Return the buffer, which is created when it is first needed.

        `same`: a tensor -> the name under which it is written once more. `buffer`: memory that a GPU copies into.
        """
        for file in self._files:
            file.invalidate()
        left = set(self._places)
        for name, part in tensors:
            names = [name, same[name]] if name in same else [name]
            if buffer is None and part.device.type == "cuda":
                buffer = torch.empty(PIECE, dtype=torch.uint8, pin_memory=True)
            _copy(part, [self._places[one] for one in names], buffer)
            left -= set(names)
            del part
        if left:
            raise RuntimeError(f"not written: {sorted(left)}")
        for file in self._files:
            file.complete(metadata)
        return buffer


@torch.no_grad()
def _copy(part: Tensor, places: list[Tensor], buffer: Tensor | None) -> None:
    """Copy a tensor to flat memory in its number format."""
    if buffer is not None and part.device.type != "cpu":
        copy_in_pieces(part.detach(), places, buffer)
        return
    places[0].copy_(part.detach().reshape(-1))
    for place in places[1:]:
        place.copy_(places[0])


def copy_in_pieces(part: Tensor, places: list[Tensor], buffer: Tensor) -> None:
    """Copy a tensor to flat memory through the buffer, so that each number leaves the GPU once."""
    flat, pinned = part.reshape(-1), buffer.view(places[0].dtype)
    for start in range(0, len(flat), len(pinned)):
        piece = flat[start : start + len(pinned)]
        here = pinned[: len(piece)].copy_(piece)
        for place in places:
            place[start : start + len(piece)].copy_(here)


class KeptFolders:
    """Two folders that are written alternately."""

    def __init__(self, place: Path, name: str = "weights") -> None:
        """`name`: the beginning of the folders' names. The rest makes them unique in a place that others write to."""
        self._place, self._name, self._numbers = place, f"{name}-{secrets.token_hex(4)}", count()
        self._folders: list[KeptFolder] = []
        self._buffer: Tensor | None = None

    def write(
        self, tensors: Iterable[tuple[str, Tensor]], layout: Mapping[str, Tensor], metadata: Mapping[str, str],
        same: Mapping[str, str] | None = None,
    ) -> Path:  # fmt: skip
        """Write a version into the older of the two folders. Return its new path."""
        path = self._place / f"{self._name}-{next(self._numbers)}"
        hidden = path.with_name(f"{path.name}-writing")
        version_folder = self._folders.pop(0) if len(self._folders) > 1 else None
        if version_folder is not None and not version_folder.takes(layout, metadata):
            shutil.rmtree(version_folder.folder)
            version_folder = None
        if version_folder is None:
            version_folder = KeptFolder(hidden, layout, metadata)
        else:
            version_folder.folder.rename(hidden)
        self._buffer = version_folder.write(tensors, same or {}, metadata, self._buffer)
        hidden.rename(path)
        version_folder.folder = path
        self._folders.append(version_folder)
        return path

    def remove(self) -> None:
        """Remove all folders and free their memory."""
        for version_folder in self._folders:
            shutil.rmtree(version_folder.folder, ignore_errors=True)
        self._folders, self._buffer = [], None
