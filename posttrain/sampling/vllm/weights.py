"""Write a policy's weights to a folder that an external engine loads: the whole model, or only an adapter.

Each tensor file has the version in its metadata. A sharded model is gathered tensor by tensor: all processes call the
same functions, and only the first one writes.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from posttrain.models.adapters import adapter_of, linear_of, merged, merged_weight
from posttrain.models.files.adapter_files import trained_tensors, write_adapter
from posttrain.models.files.save_dtype import saved_layout, streamed_tensors, unshared
from posttrain.models.files.store import TOKENIZER_FILES, config_text
from posttrain.models.sharding import divide_again, is_divided, is_sharded, whole_on_first
from posttrain.sampling.vllm.kept_files import KeptFolders
from posttrain.sampling.vllm.server import METADATA

HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks of adapters that vLLM supports."""


def lora_rank(model: Any) -> int | None:
    """Return the adapter rank to configure in vLLM; None without an adapter that vLLM can load separately.

    The adapter's layers must add B A to the product with the frozen matrix, and the frozen matrix must be the one that
    the trainer uses. So 4-bit matrices and scaled rows (DoRA) are excluded.
    """
    adapter = adapter_of(model)
    trained = (name for name, part in model.named_parameters() if part.requires_grad)
    if adapter is None or adapter.options.type != "lora" or any(".lora_" not in name for name in trained):
        return None
    return next((rank for rank in RANKS if rank >= adapter.options.rank), None)


class WholeWeights(Mapping[str, Tensor]):
    """The tensors of a model as if it had no adapter layers. Each matrix is computed on request."""

    def __init__(self, model: Any, *, adapter: bool, dtype: torch.dtype = torch.float32) -> None:
        """`adapter`: whether it is merged or left out. With 4-bit matrices it cannot be left out.

        `dtype`: the one in which a sharded model computes.
        """
        layers = {
            f"{name}.weight": layer
            for name, layer in model.named_modules()
            if hasattr(layer, "lora_A") or (hasattr(layer, "dense_weight") and not name.endswith(".base_layer"))
        }
        self._made, self._dtype = layers if adapter else {}, dtype
        named = {
            name.replace(".base_layer.", "."): part for name, part in unshared(model).items() if ".lora_" not in name
        }
        scales = {f"{name.removesuffix('weight')}scales" for name in layers}
        self._tensors = {name: part for name, part in named.items() if name not in scales}

    def __getitem__(self, name: str) -> Tensor:
        layer = self._made.get(name)
        if layer is None:
            return self._tensors[name]
        return self._merged(layer) if is_divided(linear_of(layer).weight) else merged_weight(layer)

    def _merged(self, layer: Any) -> Tensor:
        """Return the merged matrix of a layer whose matrices are sharded."""
        weight, a, b, *magnitude = (whole_on_first(part, self._dtype) for part in _matrices(layer))
        return merged(weight, a, b, layer.scaling[layer.active_adapters[0]], *magnitude)

    def shapes(self) -> dict[str, Tensor]:
        """Return the tensors without computing any: a merged matrix has no values."""
        linear = {name: linear_of(layer) for name, layer in self._made.items()}
        made = {name: torch.empty(one.out_features, one.in_features, device="meta") for name, one in linear.items()}
        return self._tensors | {name: part for name, part in made.items() if name in self._tensors}

    def parts(self) -> Iterator[Tensor]:
        """Yield the tensors that are read, in the order in which they are read."""
        for name, part in self._tensors.items():
            yield from _matrices(self._made[name]) if name in self._made else [part]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _matrices(layer: Any) -> list[Tensor]:
    """Return a layer's frozen matrix and those of its adapter."""
    [name], vectors = layer.active_adapters, layer.lora_magnitude_vector
    matrices = [linear_of(layer).weight, layer.lora_A[name].weight, layer.lora_B[name].weight]
    return [*matrices, vectors[name].weight] if name in vectors else matrices


def own_tensors(model: Any, dtype: torch.dtype, *, adapter: bool = True) -> Mapping[str, Tensor]:
    """Return the model's tensors, each tied tensor once. `adapter`: merge the adapter or omit it."""
    divide_again(model)
    if adapter_of(model) is None:
        return unshared(model)
    return WholeWeights(model, adapter=adapter, dtype=dtype)


def help_gather(model: Any, dtype: torch.dtype, *, adapter: bool = True) -> None:
    """Send this process's rows of a sharded model to the process that writes it."""
    if is_sharded(model):
        tensors = own_tensors(model, dtype, adapter=adapter)
        for part in tensors.parts() if isinstance(tensors, WholeWeights) else tensors.values():
            if is_divided(part):
                whole_on_first(part, dtype)


def help_gather_lora(model: Any) -> None:
    """Send this process's shards of the adapter to the process that writes it."""
    if is_sharded(model):
        divide_again(model)
        trained_tensors(model)


def write_lora(model: Any, folder: Path, version: str, dtype: torch.dtype) -> int:
    """Write the adapter of a model into an empty folder. Return the size in bytes."""
    adapter = adapter_of(model)
    assert adapter is not None
    divide_again(model)
    write_adapter(model, adapter, folder, dtype, {METADATA: version})
    return size_of(folder)


def write_weights(
    model: Any, files: Path, folders: KeptFolders, version: str, dtype: torch.dtype, *, adapter: bool = True
) -> Path:
    """Write weights, config and the tokenizer of `files` into one of the kept folders. Return its path.

    `adapter`: whether the model's adapter is merged or left out. A tied head is written as a separate matrix, because
    vLLM 0.30 keeps the old head of a tied model when it reloads. It is taken from the model once.
    """
    tensors = own_tensors(model, dtype, adapter=adapter)
    layout = saved_layout(model, dtype, tensors.shapes() if isinstance(tensors, WholeWeights) else tensors)
    config = json.loads(config_text(model, dtype))
    tied = HEAD not in layout and model.config.get_text_config().tie_word_embeddings
    source = next((name for name in layout if name.endswith(EMBEDDING)), "") if tied else ""
    if source:
        config["tie_word_embeddings"] = False
        layout = {**layout, HEAD: layout[source]}
    same, metadata = {source: HEAD} if source else {}, {"format": "pt", METADATA: version}
    folder = folders.write(streamed_tensors(model, dtype, tensors), layout, metadata, same)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    for file in (files / name for name in TOKENIZER_FILES):
        if file.is_file() and not (folder / file.name).is_file():
            shutil.copyfile(file, folder / file.name)
    return folder


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(file.stat().st_size for file in folder.iterdir())
