"""Give a sharded model its values: the first process has the whole model, each process gets its own rows.

Tensors travel one after the other, so no other process ever holds more than its rows. The first one needs host memory
for the whole model, as a run of one process does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posttrain.distributed import world
from posttrain.errors import ModelError
from posttrain.models.device import Runtime
from posttrain.models.forward.layers import fuse_alike, fused_of
from posttrain.models.sharding import is_divided, own_part, place_of, shard

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

FLAGS = ("runs_in_rows", "has_own_cache")
"""Facts about a model from the check at load."""


def parted(make: Callable[..., Any], runtime: Runtime, mesh: DeviceMesh) -> Any:
    """Return a sharded model. `make` creates it with the first process's values, and with `empty` without values."""
    whole = make() if world.is_rank_zero() else None
    model = runtime.suit(make(empty=True))
    copy_flags(whole, model)
    shard(model, mesh, bf16=runtime.bf16)
    fill_from_first(model, whole, runtime.device)
    return model


def copy_flags(whole: Any | None, model: Any) -> None:
    """Give the model the facts that the first process found out about the whole model."""
    flags = world.from_first(lambda: {name: bool(getattr(whole, name, False)) for name in FLAGS})
    if flags["runs_in_rows"]:
        model.set_attn_implementation(world.from_first(lambda: whole.config._attn_implementation))  # type: ignore[union-attr]
    for name, value in flags.items():
        if value:
            setattr(model, name, value)
    fuse_alike(model, world.from_first(lambda: fused_of(whole)))


@torch.no_grad()
def fill_from_first(model: Any, whole: Any | None, device: torch.device) -> None:
    """Replace the empty tensors of a sharded model by the values of the first process's `whole` model.

    The tensors of `whole` are freed on the way. Random numbers continue as in the first process.
    """
    local = dict(_tensors(model))
    theirs = {} if whole is None else dict(_tensors(whole))
    named = {name: str(part.dtype).removeprefix("torch.") for name, part in theirs.items()}
    expected: dict[str, str] = world.from_first(lambda: named)
    if unknown := local.keys() - expected.keys():
        what = f"processes built different models: the first process has no {sorted(unknown)[:3]}"
        raise ModelError(what=what, where=type(model).__name__, fix="Give all processes the same files and packages")
    made: dict[int, Tensor] = {}
    for name in sorted(local):
        part = local[name]
        if id(part) not in made:
            kind = part.dtype if is_divided(part) else getattr(torch, expected[name])
            made[id(part)] = _received(part, theirs.get(name), kind, device)
        if name in theirs:
            theirs[name].data = theirs[name].data.new_empty(0)
    _replace(model, made)
    torch.set_rng_state(world.gathered_tensors(torch.get_rng_state())[0])


def _received(part: Tensor, whole: Tensor | None, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return this process's rows of the first one's tensor, or all of it if it is not sharded."""
    whole = None if whole is None else whole.detach().to("cpu", dtype).contiguous()
    if not is_divided(part):
        value = torch.empty(part.shape, dtype=dtype) if whole is None else whole
        dist.broadcast(value, 0)
        value = value.to(device)
        return nn.Parameter(value, requires_grad=part.requires_grad) if isinstance(part, nn.Parameter) else value
    from torch.distributed.tensor import DTensor

    _, parts = place_of(part)
    size, width = -(-part.shape[0] // parts), part.shape[1:]
    rows = torch.empty((size, *width), dtype=dtype)
    pieces = None if whole is None else [_piece(whole, rank % parts, size) for rank in range(world.count())]
    dist.scatter(rows, pieces, 0)
    held = own_part(part).shape[0]  # the last processes may have fewer rows, or none
    local = rows[:held].to(device)
    made = DTensor.from_local(
        local, part.device_mesh, part.placements, run_check=False, shape=part.shape, stride=part.stride()
    )
    return nn.Parameter(made, requires_grad=part.requires_grad)


def _piece(whole: Tensor, place: int, size: int) -> Tensor:
    """Return the rows of one process. All pieces have the same size, so the last ones are filled up."""
    rows = whole[place * size : (place + 1) * size]
    return rows if len(rows) == size else torch.cat([rows, rows.new_zeros((size - len(rows), *rows.shape[1:]))])


def _tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield every parameter, buffer and other tensor of the modules. A tied one has the same name everywhere."""
    seen: set[int] = set()
    for prefix, module in model.named_modules():
        for name, part in _held(module):
            if id(part) not in seen:
                seen.add(id(part))
                yield f"{prefix}.{name}", part


def _held(module: nn.Module) -> list[tuple[str, Tensor]]:
    held = (module._parameters, module._buffers, vars(module))
    return [(name, part) for parts in held for name, part in parts.items() if isinstance(part, Tensor)]


def _replace(model: nn.Module, made: dict[int, Tensor]) -> None:
    """Put the values in the places of the empty tensors."""
    for module in model.modules():
        held: tuple[dict[str, Any], ...] = (module._parameters, module._buffers, vars(module))
        for parts in held:
            for name, part in parts.items():
                if isinstance(part, Tensor) and id(part) in made:
                    parts[name] = made[id(part)]
