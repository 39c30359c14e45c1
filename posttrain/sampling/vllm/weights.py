"""Write a policy's weights to a folder that an external engine loads: the whole model, or only an adapter.

Each tensor file has the version in its metadata.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from posttrain.errors import EngineError
from posttrain.models.adapters import adapter_of, merged_weight
from posttrain.models.files.adapter_files import write_adapter
from posttrain.models.files.save_dtype import saved_layout, saved_tensors, unshared
from posttrain.models.files.store import TOKENIZER_FILES, config_text
from posttrain.models.files.weights import SHARD_BYTES, write_shards
from posttrain.sampling.vllm.server import METADATA

HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"
RANKS: Final = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""The ranks of adapters that vLLM supports."""


def lora_rank(model: Any) -> int | None:
    """Return the rank to configure in vLLM; None if there is no adapter or vLLM cannot load it separately.

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

    def __init__(self, model: Any, *, adapter: bool) -> None:
        """`adapter`: whether it is merged or left out. With 4-bit matrices it cannot be left out."""
        layers = {
            f"{name}.weight": layer
            for name, layer in model.named_modules()
            if hasattr(layer, "lora_A") or (hasattr(layer, "dense_weight") and not name.endswith(".base_layer"))
        }
        self._made = layers if adapter else {}
        named = {
            name.replace(".base_layer.", "."): part for name, part in unshared(model).items() if ".lora_" not in name
        }
        scales = {f"{name.removesuffix('weight')}scales" for name in layers}
        self._tensors = {name: part for name, part in named.items() if name not in scales}

    def __getitem__(self, name: str) -> Tensor:
        return merged_weight(self._made[name]) if name in self._made else self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def write_lora(model: Any, folder: Path, version: str, dtype: torch.dtype) -> int:
    """Write the adapter of a model into an empty folder. Return the size in bytes."""
    adapter = adapter_of(model)
    assert adapter is not None
    write_adapter(model, adapter, folder, dtype, {METADATA: version})
    return sum(file.stat().st_size for file in folder.iterdir())


def write_weights(
    model: Any, files: Path, folder: Path, version: str, dtype: torch.dtype, *, adapter: bool = True
) -> int:
    """Write weights, config and the tokenizer of `files` into an empty folder. Return the size in bytes.

    `adapter`: whether the model's adapter is merged or left out. A tied head is written as a separate matrix, because
    vLLM 0.30 keeps the old head of a tied model when it reloads.
    """
    own = WholeWeights(model, adapter=adapter) if adapter_of(model) is not None else unshared(model)
    layout = saved_layout(model, dtype, own)
    config = json.loads(config_text(model, dtype))
    tied = HEAD not in layout and model.config.get_text_config().tie_word_embeddings
    source = next((name for name in layout if name.endswith(EMBEDDING)), "") if tied else ""
    if source:
        config["tie_word_embeddings"] = False
        layout = {**layout, HEAD: layout[source]}
    needed, free = sum(part.nbytes for part in layout.values()), shutil.disk_usage(folder).free
    if needed > free:
        what = f"the weights take {needed / 1e9:.3g} GB, and {free / 1e9:.3g} GB are free"
        fix = "Enlarge it (in a container: --shm-size; two versions have to fit), or use rollout.engine builtin"
        raise EngineError(what=what, where=str(folder.parent), fix=fix)
    tensors = chain.from_iterable(
        [(name, part), (HEAD, part)] if name == source else [(name, part)]
        for name, part in saved_tensors(model, dtype, own)
    )  # fmt: skip
    write_shards(tensors, layout, folder, SHARD_BYTES, {METADATA: version}, described=False)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    for file in (files / name for name in TOKENIZER_FILES):
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
    return sum(file.stat().st_size for file in folder.iterdir())
