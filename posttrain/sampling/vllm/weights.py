"""The weights of a policy as a folder that an external engine loads: one safetensors file, or shards, per version."""

from __future__ import annotations

import json
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from posttrain.errors import EngineError
from posttrain.models.files.save_dtype import saved_layout, saved_tensors
from posttrain.models.files.store import TOKENIZER_FILES, config_text
from posttrain.models.files.weights import SHARD_BYTES, write_shards
from posttrain.sampling.vllm.server import METADATA

HEAD, EMBEDDING = "lm_head.weight", "embed_tokens.weight"


def write_weights(model: Any, files: Path, folder: Path, version: str, dtype: torch.dtype) -> None:
    """Write weights, config and the tokenizer of `files` into an empty folder, with the version in each weight file.

    A tied head is written as a matrix of its own: vLLM 0.30 keeps the old head of a tied model when it reloads.
    """
    layout = saved_layout(model, dtype)
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
        for name, part in saved_tensors(model, dtype)
    )  # fmt: skip
    write_shards(tensors, layout, folder, SHARD_BYTES, {METADATA: version}, described=False)
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    for file in (files / name for name in TOKENIZER_FILES):
        if file.is_file():
            shutil.copyfile(file, folder / file.name)
