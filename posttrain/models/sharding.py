"""Models sharded across the processes of a run with torch's FSDP2.

Each process keeps some rows of every weight and gathers a layer's weights while that layer is computed. Gradients are
sums over the processes. Losses are divided by the counts of the whole step first, so nothing is averaged.

FSDP is imported only on use, because that takes most of a second and a run of one process does not need it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from posttrain.distributed import world
from posttrain.errors import ParamsError
from posttrain.settings.host import HOST

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor

SCOPE = "posttrain_scope"
"""The method of a sharded model that runs a function with its weights gathered."""

WHOLE = "posttrain_whole"
"""The attribute that is true if a sharded model is gathered."""

T = TypeVar("T")


def mesh_of(device: torch.device, shards: int | None) -> DeviceMesh:
    """Return all processes, or groups of `shards` processes that each hold the whole model together (HSDP)."""
    from torch.distributed.device_mesh import init_device_mesh

    size = world.count()
    if shards is None or shards == size:
        return init_device_mesh(device.type, (size,), mesh_dim_names=("shard",))
    if size % shards:
        what = f"{size} processes cannot be divided into groups of shards = {shards}"
        raise ParamsError(what=what, where=HOST.settings_file, fix="Use a divisor of processes, or null")
    return init_device_mesh(device.type, (size // shards, shards), mesh_dim_names=("copy", "shard"))


def shard(model: Any, mesh: DeviceMesh, *, bf16: bool) -> Any:
    """Shard the model's weights across the processes of the mesh, layer by layer, in place."""
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
    from transformers.modeling_layers import GradientCheckpointingLayer

    precision = MixedPrecisionPolicy(cast_forward_inputs=False)
    if bf16:
        precision = MixedPrecisionPolicy(torch.bfloat16, torch.float32, cast_forward_inputs=False)
        for part in model.parameters():  # trained ones are their own masters
            if not part.requires_grad and part.dtype == torch.float32:
                part.data = part.data.to(torch.bfloat16)
    setattr(model, SCOPE, lambda function: function())
    layers = [part for part in model.modules() if isinstance(part, GradientCheckpointingLayer)]
    for part in (*layers, model):
        fully_shard(part, mesh=mesh, mp_policy=precision)
    _free_after_use(model)
    _gather_backwards([*layers, model])
    for part in _sharded_modules(model):  # neither call reaches the modules within
        part.set_gradient_divide_factor(1.0)
        part.set_force_sum_reduction_for_comms(True)
    register_fsdp_forward_method(model, SCOPE)
    return model


def _gather_backwards(modules: Sequence[Any]) -> None:
    """Let each module prefetch the one before it in a backward pass, and the first one nothing.

    FSDP would follow the order of all forward passes since the last backward pass. Processes that sample run different
    numbers of them, so some would gather what others do not, and all would wait for each other.
    """
    for before, module in zip([modules[0], *modules], modules, strict=False):
        module.set_modules_to_backward_prefetch([before])


def is_sharded(model: Any) -> bool:
    """Tell whether the model is sharded."""
    return hasattr(model, SCOPE)


def gathered(model: Any, function: Callable[[], T]) -> T:
    """Return the function's result with the weights outside the layers gathered. Layers gather their own weights.

    Results with a gradient must be tensors, or tuples, lists and dicts of tensors, because FSDP searches for them.
    """
    if not is_sharded(model):
        return function()
    result: T = getattr(model, SCOPE)(function)
    return result


@contextlib.contextmanager
def whole(*models: Any) -> Iterator[None]:
    """Gather all weights of the models in this process, e.g. for decoding."""
    divided = [model for model in models if is_sharded(model)]
    for model in divided:
        gathered(model, lambda: None)  # FSDP finds out at first use which module is the root
        for part in _sharded_modules(model):
            part.unshard()
            part.set_reshard_after_forward(False, recurse=False)  # a prefill runs the layers
        setattr(model, WHOLE, True)
    try:
        yield
    finally:
        for model in divided:
            for part in _sharded_modules(model):
                part.reshard()
            _free_after_use(model)
            setattr(model, WHOLE, False)


def divide_again(model: Any) -> None:
    """Free the weights that a forward pass has left gathered in this process."""
    for part in _sharded_modules(model) if is_sharded(model) else ():
        part.reshard()


def is_whole(model: Any) -> bool:
    """Tell whether this process has all weights of the model now."""
    return not is_sharded(model) or getattr(model, WHOLE, False)


def _free_after_use(model: Any) -> None:
    """Free each layer's weights after its forward pass. Weights outside the layers wait for a backward pass."""
    trained = any(part.requires_grad for part in model.parameters())
    for part in _sharded_modules(model):
        part.set_reshard_after_forward(part is not model or not trained, recurse=False)


def _sharded_modules(model: nn.Module) -> list[FSDPModule]:
    from torch.distributed.fsdp import FSDPModule

    return [part for part in model.modules() if isinstance(part, FSDPModule)]


def is_divided(tensor: Tensor) -> TypeGuard[DTensor]:
    """Tell whether each process has only some of the tensor's rows."""
    return hasattr(tensor, "full_tensor")


def own_part(tensor: Tensor) -> Tensor:
    """Return this process's part of a tensor: if it is sharded, some rows."""
    return tensor.to_local() if is_divided(tensor) else tensor


def full(tensor: Tensor) -> Tensor:
    """Return the whole tensor. Every process must call this."""
    return tensor.full_tensor() if is_divided(tensor) else tensor


@torch.no_grad()
def whole_on_first(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the whole tensor in this dtype in the first process, and an empty tensor elsewhere.

    Every process must call this.

    Only the first process needs memory for it: the others send their rows.
    """
    if not is_divided(tensor):
        return tensor.detach().to(dtype)
    part, parts = place_of(tensor)
    local = own_part(tensor).detach().to(dtype).contiguous()
    none, group = local.new_empty(0), tensor.device_mesh.get_group(tensor.device_mesh.ndim - 1)
    if not writes(tensor):
        return none
    if part:
        if local.numel():
            dist.send(local.view(-1).view(torch.uint8), dist.get_global_rank(group, 0), group)
        return none
    whole_tensor = local.new_empty(tensor.shape)
    for number, rows in enumerate(torch.split(whole_tensor, -(-len(whole_tensor) // parts))):
        if number:
            dist.recv(rows.view(-1).view(torch.uint8), dist.get_global_rank(group, number), group)
        else:
            rows.copy_(local)
    return whole_tensor


def place_of(tensor: DTensor) -> tuple[int, int]:
    """Return (the index of this process's part of the rows, the number of parts)."""
    mesh = tensor.device_mesh
    return mesh.get_local_rank(mesh.ndim - 1), mesh.size(mesh.ndim - 1)


def writes(tensor: DTensor) -> bool:
    """Tell whether this process writes its rows. Among copies, only the first process writes."""
    return tensor.device_mesh.ndim == 1 or tensor.device_mesh.get_local_rank(0) == 0


def own_rows(tensor: Tensor, like: Tensor) -> Tensor:
    """Return this process's rows of a whole tensor, divided like `like`."""
    if not is_divided(like):
        return tensor
    part, parts = place_of(like)
    size = -(-tensor.shape[0] // parts)
    return tensor[part * size : (part + 1) * size]


def as_divided(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a whole tensor sharded like `like`."""
    from torch.distributed.tensor import DTensor

    if not is_divided(like):
        return tensor
    local = own_rows(tensor, like).to(own_part(like).device, copy=True)
    return DTensor.from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@torch.no_grad()
def fill(target: Tensor, tensor: Tensor) -> None:
    """Copy a whole tensor into a tensor that may be sharded."""
    own_part(target).copy_(own_rows(tensor, target))
