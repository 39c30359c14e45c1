"""The dtype and layout of a saved model, and a warning if rounding undoes the training."""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from posttrain.models.adapters import adapter_of
from posttrain.models.files.adapter_files import whole_model
from posttrain.models.files.weights import WeightFiles, has_weights, kind, open_weights
from posttrain.models.master_weights import keeps_float32, master_of, round_masters
from posttrain.models.sharding import is_divided, is_sharded, whole_on_first

MAX_UNDONE = 0.1
"""The fraction of trained weights above which undone weights cause a warning."""

PIECE = 2**20
"""The count of numbers compared at a time."""

SaveDtype = Literal["float32", "bfloat16", "float16"]


@torch.no_grad()
def round_weights(model: Any, source: str | Path, save_dtype: SaveDtype | None = None) -> torch.dtype:
    """Round the model in memory to its save dtype, and warn if that undoes the training."""
    if adapter_of(model) is not None:
        dtype: torch.dtype = torch.float32 if save_dtype is None else getattr(torch, save_dtype)
        for part in model.parameters():
            if part.requires_grad:
                master_of(part).copy_(master_of(part).to(dtype))
        round_masters(model.parameters())
        return dtype
    folder = whole_model(Path(source))
    with open_weights(folder) if has_weights(folder) else contextlib.nullcontext() as weights:
        if save_dtype is not None:
            dtype = getattr(torch, save_dtype)
        else:
            dtype = weights.dtype() if weights is not None else torch.float32
        if dtype != torch.float32 and weights is not None:
            _warn_of_lost_training(model, weights, dtype)
    for name, part in unshared(model).items():
        part.copy_(part.to(_dtype_of(model, name, dtype)))
    round_masters(model.parameters())
    return dtype


def _warn_of_lost_training(model: Any, start: WeightFiles, dtype: torch.dtype) -> None:
    """Warn if rounding returns many of the trained weights to their start values."""
    changed = undone = 0
    for name, part in _hub_layout(model, unshared(model)):
        if name not in start or list(start.later(name).get_shape()) != list(part.shape):
            continue
        pieces = (torch.split(flat.flatten(), PIECE) for flat in (part.detach().cpu(), start.tensor(name)))
        for trained, before in zip(*pieces, strict=True):
            moved = trained != before.float()
            changed += int(moved.sum())
            undone += int((moved & (trained.to(dtype) == before.to(dtype))).sum())
    if undone > MAX_UNDONE * changed:
        print(
            f"{start.folder}: saving in {kind(dtype)} rounds {undone / changed:.0%} of the weights that training "
            "changed back to where they started. Set save_dtype: float32, or raise the learning rate",
            file=sys.stderr,
        )


def _dtype_of(model: Any, name: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that a tensor is saved in. Some families keep a few in float32, whatever the others have."""
    return torch.float32 if keeps_float32(model, name, dtype) else dtype


def saved_layout(model: Any, dtype: torch.dtype, tensors: Mapping[str, Tensor] | None = None) -> dict[str, Tensor]:
    """Return every tensor that `saved_tensors` yields, without memory for values."""
    tensors = unshared(model) if tensors is None else tensors

    def empty(name: str, part: Tensor) -> Tensor:
        return torch.empty(part.shape, dtype=_dtype_of(model, name, dtype), device="meta")

    return dict(_hub_layout(model, tensors, empty))


def saved_tensors(
    model: Any, dtype: torch.dtype, tensors: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its name and dtype on disk, in host memory.

    `tensors`: the model's tensors, if they are not those in its modules.
    """
    tensors = unshared(model) if tensors is None else tensors
    copy = is_sharded(model)  # FSDP frees what it has gathered, which it cannot once numpy has seen it
    return _hub_layout(
        model, tensors, lambda name, part: part.detach().to("cpu", _dtype_of(model, name, dtype), copy=copy)
    )


def streamed_tensors(
    model: Any, dtype: torch.dtype, tensors: Mapping[str, Tensor] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield every tensor with its name on disk, one at a time, whole and on its device.

    Its dtype is `dtype` if it is sharded, the saved one if transformers converts the family, else the model's. If the
    model is sharded, the other processes must call `whole_on_first` for the same tensors.
    """
    tensors = unshared(model) if tensors is None else tensors
    joins = converts(model)

    def change(name: str, part: Tensor) -> Tensor:
        saved = _dtype_of(model, name, dtype)
        part = whole_on_first(part, dtype) if is_divided(part) else part.detach()
        return part.to("cpu", saved) if joins else part

    return _hub_layout(model, tensors, change)


def converts(model: Any) -> bool:
    """Tell whether transformers joins or renames tensors of this family on loading."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import PrefixChange

    changes = get_model_conversion_mapping(model, add_legacy=False)
    return any(not isinstance(one, PrefixChange) for one in changes)


LAYER = re.compile(r".*?\.\d+\.")
"""The part of a name that all tensors of a layer share."""


def _hub_layout(
    model: Any, tensors: Mapping[str, Tensor], change: Callable[[str, Tensor], Tensor] = lambda _, part: part
) -> Iterator[tuple[str, Tensor]]:
    """Yield the changed tensors in the Hub's layout. transformers joins experts and renames parts on loading.

    transformers copies what it converts, so it gets one layer at a time. Without conversions it is one tensor.
    """
    from transformers.core_model_loading import revert_weight_conversion

    model._weight_conversions = None  # the family's layout, whichever one the files had that were loaded
    if not converts(model):
        yield from ((name, change(name, part)) for name, part in tensors.items())
        return
    for _, names in groupby(tensors, key=_layer):
        yield from revert_weight_conversion(model, {name: change(name, tensors[name]) for name in names}).items()


def _layer(name: str) -> str:
    """Return the common prefix of a layer's tensor names; empty for other tensors."""
    match = LAYER.match(name)
    return match.group() if match else ""


def unshared(model: nn.Module) -> dict[str, Tensor]:
    """Return parameters (or their masters) and saved buffers, each tied tensor once."""
    seen: dict[int, str] = {}
    tensors: dict[str, Tensor] = {}
    for name, part in _named_tensors(model).items():
        if id(part) not in seen:
            seen[id(part)] = name
            tensors[name] = master_of(part)
    return tensors


def _named_tensors(model: nn.Module) -> Mapping[str, Tensor]:
    """Return the model's state_dict. For a gathered model, skip FSDP's hook, which would shard it again."""
    if not is_sharded(model):
        return model.state_dict(keep_vars=True)
    tensors: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        module._save_to_state_dict(tensors, f"{name}." if name else "", keep_vars=True)
    return tensors
