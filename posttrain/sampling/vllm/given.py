"""The weights for the servers: an adapter for the frozen model that they hold, or the whole model."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any, Final

import torch

from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.together import announce
from posttrain.sampling.vllm.weights import lora_rank, size_of, write_lora, write_weights

FROZEN: Final = "the frozen model"
"""The version of the weights when a server with adapters is started."""


class GivenWeights:
    """The folders of the current weights in the servers' folder."""

    def __init__(self, model: Any, files: Path, place: Path, dtype: torch.dtype) -> None:
        """`files`: the folder with the tokenizer. `dtype`: the servers' number format."""
        self._files, self._place, self._dtype = files, place, dtype
        self._folders = KeptFolders(place)
        self.rank = lora_rank(model)
        """The adapter's rank; None if the whole model is written."""
        self.folder: Path | None = None
        self.frozen: Path | None = None

    def write(self, model: Any, version: str) -> int:
        """Write the adapter (and once the frozen model), or the whole model with it merged. Return the bytes."""
        if self.rank is None:
            announce("whole", dtype=self._dtype)
            self.folder = write_weights(model, self._files, self._folders, version, self._dtype)
            return size_of(self.folder)
        announce("lora")
        self.folder = Path(tempfile.mkdtemp(prefix="adapter-", dir=self._place))
        size = write_lora(model, self.folder, version, self._dtype)
        if self.frozen is None:
            announce("frozen", dtype=self._dtype)
            folders = KeptFolders(self._place, "frozen")
            self.frozen = write_weights(model, self._files, folders, FROZEN, self._dtype, adapter=False)
        return size

    def merge(self) -> None:
        """Write whole models from now on."""
        for folder in filter(None, (self.folder, self.frozen)):
            shutil.rmtree(folder)
        self.rank, self.folder, self.frozen = None, None, None

    def forget(self, folder: Path) -> None:
        """Remove an adapter that is no longer needed. Folders of whole models are reused."""
        if self.rank is not None:
            shutil.rmtree(folder)

    def remove(self) -> None:
        """Free the memory of the files."""
        self._folders.remove()
