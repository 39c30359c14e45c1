"""Adapter folders in peft's format: the trained matrices, and the digest of their frozen model."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from posttrain.errors import ModelError
from posttrain.models.adapters import ADAPTER, TrainedAdapter, merged
from posttrain.models.files.weights import TensorFile, digest
from posttrain.models.master_weights import master_of
from posttrain.models.sharding import full, is_sharded
from posttrain.settings.host import HOST

ADAPTER_CONFIG: Final = "adapter_config.json"
ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
ADAPTED_CONFIG: Final = "adapted_config.json"
"""The config of the model with the adapter. As config.json, it would make transformers look for a whole model."""
PREFIX: Final = "base_model.model."
"""peft's prefix of tensor names."""
MAGNITUDE: Final = "lora_magnitude_vector"
MERGE: Final = "Merge it into its model with peft"


class Base(NamedTuple):
    """The frozen model of an adapter: its folder and the digest of its manifest."""

    folder: Path
    manifest: str
    format: str
    """`whole`, or `nf4` for 4 bits."""


def is_adapter(folder: Path) -> bool:
    """Tell whether the folder contains an adapter and not a whole model."""
    return (folder / ADAPTER_CONFIG).is_file()


def config_file(folder: Path) -> Path:
    """Return the config file of the folder's model, whole or adapter. Earlier adapters have config.json."""
    adapted = folder / ADAPTED_CONFIG
    return adapted if adapted.is_file() else folder / "config.json"


def whole_model(folder: Path) -> Path:
    """Return the folder of the whole model below an adapter, directly or through other adapters."""
    while is_adapter(folder):
        folder = Path(str(read_adapter(folder)[0].get("base_model_name_or_path")))
    return folder


def trained_tensors(model: Any) -> dict[str, Tensor]:
    """Return the trained tensors of a model with an adapter, unsharded, with peft's file names."""
    trained = {name: part for name, part in model.named_parameters() if part.requires_grad}
    named = {
        name.replace(f".{ADAPTER}", ""): full(master_of(part).detach()).to("cpu", copy=is_sharded(model))
        for name, part in sorted(trained.items())
    }
    return {name.removesuffix(".weight") if MAGNITUDE in name else name: part for name, part in named.items()}


def write_adapter(
    model: Any, adapter: TrainedAdapter, folder: Path, dtype: torch.dtype, metadata: Mapping[str, str] | None = None
) -> None:
    """Write the trained tensors and their config. `metadata` is added to the file's own."""
    saved = {PREFIX + name: part.to(dtype).contiguous() for name, part in trained_tensors(model).items()}
    with TensorFile(folder / ADAPTER_WEIGHTS, saved, {"format": "pt", **(metadata or {})}) as file:
        for name, part in saved.items():
            file.write(name, part)
    config = {**adapter.config, "base_model_name_or_path": adapter.base.as_posix()}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def read_adapter(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return the config and the tensors of an adapter, without peft's prefix."""
    try:
        config = json.loads((folder / ADAPTER_CONFIG).read_bytes())
        kind, _ = config["peft_type"], scaling(config)
        tensors = load_file(str(folder / ADAPTER_WEIGHTS))
    except (OSError, ValueError, LookupError, TypeError, ZeroDivisionError, SafetensorError) as error:
        fix = "Rerun the stage that wrote it"
        raise ModelError(what=f"the adapter cannot be read ({error})", where=str(folder), fix=fix) from error
    if kind != "LORA":
        raise ModelError(what=f"an adapter of type {kind}", where=str(folder), fix=MERGE)
    for key in ("alpha_pattern", "rank_pattern", "fan_in_fan_out"):
        if config.get(key):
            raise ModelError(what=f"an adapter with {key}, which is not supported", where=str(folder), fix=MERGE)
    return config, {name.removeprefix(PREFIX): part for name, part in tensors.items()}


def scaling(config: Mapping[str, Any]) -> float:
    """Return the factor of an adapter's update."""
    rank = config["r"]
    return float(config["lora_alpha"] / (math.sqrt(rank) if config.get("use_rslora") else rank))


@torch.no_grad()
def merge_into(model: Any, config: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str) -> None:
    """Merge an adapter into a fresh copy of its model. Removing it again would not restore the exact bits."""
    named: Mapping[str, nn.Parameter] = dict(model.named_parameters())
    rest = dict(tensors)
    for layer in sorted({name.partition(".lora_")[0] for name in tensors if ".lora_" in name}):
        weight = named.get(f"{layer}.weight")
        a, b = (rest.pop(f"{layer}.{kind}.weight", None) for kind in ("lora_A", "lora_B"))
        if weight is None or a is None or b is None or (b.shape[0], a.shape[1]) != tuple(weight.shape):
            raise _unfit(where, layer)
        weight.copy_(merged(weight, a, b, scaling(config), rest.pop(f"{layer}.{MAGNITUDE}", None)))
    for name, part in rest.items():
        if name not in named or named[name].shape != part.shape:
            raise _unfit(where, name)
        named[name].copy_(part)


def check_base(base: Base, where: Path, manifest: str) -> None:
    """Reject an adapter whose frozen model is missing or different."""
    if not config_file(base.folder).is_file():  # the base may be an adapter
        fix = HOST.fix("base missing", "Put it there again").format(base=base.folder.as_posix())
        what = f"its base {base.folder.as_posix()} is missing"
        raise ModelError(what=what, where=str(where), fix=fix)
    if base_digest(base.folder, manifest) != base.manifest:
        what = f"its base {base.folder.as_posix()} has changed since the adapter was trained"
        raise ModelError(what=what, where=str(where), fix=HOST.fix("base changed", "Restore the base of the training"))


def base_digest(folder: Path, manifest: str) -> str:
    """Return the digest that identifies a frozen model: of its manifest, or of weights and config if it has none."""
    if (folder / manifest).is_file():
        return digest(folder / manifest)
    files = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    return hashlib.sha256("".join(f"{file.name} {digest(file)}\n" for file in files).encode()).hexdigest()


def _unfit(where: str, name: str) -> ModelError:
    return ModelError(
        what=f"the adapter's {name} does not fit the model", where=where, fix="Use the adapter's own base"
    )
