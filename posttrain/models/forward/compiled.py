"""Decoder layers compiled by torch for training. Sampling is not compiled, attention only with FlashAttention 3 or 4.

Of a mixture's layer the parts without routers are compiled, because what routers choose is recorded between the parts.
A sharded layer is gathered before its compiled code runs.

The compiler's output may depend on the number of tokens that it sees first. So it runs before the first step on batches
that are always the same. Nothing is compiled later, and a pass that does not fit runs uncompiled. A run's bytes
therefore depend neither on caches nor on where the run was interrupted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from torch import nn

from posttrain.errors import ModelError
from posttrain.measure.phases import phase
from posttrain.models.device import repeatable
from posttrain.models.forward.activations import checkpointed_layers
from posttrain.models.forward.forward import attention_uncompiled, packed_states, runs_in_rows
from posttrain.models.forward.layers import has_usual_code, plain_forward
from posttrain.models.forward.routers import find_routers
from posttrain.models.forward.traced import heads_of, tracing
from posttrain.models.sharding import gathered, is_sharded
from posttrain.rollout import TokenRow
from posttrain.settings.host import HOST
from posttrain.text.packing import pack

FIRST_BATCH = [TokenRow([0], [0] * 15)] * 63 + [TokenRow([0, 0], [0] * 29)]
"""The first batch for the compiler: 977 tokens (the prompt [0] once). An equal model width would fix the number."""
LARGE_BATCH = [TokenRow([0], [0] * 15)] * 1023 + [TokenRow([0, 0], [0] * 29)]
"""The next batch for a GPU, whose code for few tokens does not support some thousands: 15,377 tokens."""
OPTIONS: dict[str, str | int | bool | Callable[..., Any]] = {"deterministic": True, "fallback_random": True}
"""Options of torch's compiler: nothing is chosen by timing, and dropout draws the same as without compiling."""


@contextlib.contextmanager
def compiled(models: Iterable[Any], *, on: bool) -> Iterator[None]:
    """Compile the models' layers within the context if a gradient is needed. `on` false: change nothing."""
    if not on:
        yield
        return
    models = list(models)
    torch.compiler.reset()  # what an earlier run of this process compiled
    layers = [layer for model in models for layer in compiled_layers(model)]
    bodies: dict[type, Callable[..., Any]] = {}
    with _attention_of(models, layers), torch.compiler.set_stance("default"):
        try:
            for layer in layers:
                plain = plain_forward(layer)
                if type(layer) not in bodies:
                    bodies[type(layer)] = torch.compile(plain, dynamic=True, options=OPTIONS)
                layer.forward = partial(_forward, layer, plain, bodies[type(layer)])
            print("the layers are compiled first", flush=True)
            with phase("load"):
                for model in models:
                    _compile(model)
            with torch.compiler.set_stance("eager_on_recompile"):
                yield
        finally:
            for layer in layers:
                vars(layer).pop("forward", None)


def _attention_of(models: Sequence[Any], layers: Sequence[Any]) -> AbstractContextManager[None]:
    """Return a context in which attention is traced, if all layers and their kernel permit it, or not compiled."""
    heads = {heads_of(model) for model in models} if all(map(has_usual_code, layers)) else {None}
    common = heads.pop() if len(heads) == 1 else None
    return attention_uncompiled() if common is None else tracing(common)


def _forward(layer: Any, plain: Callable[..., Any], body: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
    """Return the function that replaces a layer's own forward."""
    run = partial(body if torch.is_grad_enabled() else plain, layer, **named)
    if getattr(layer, "gradient_checkpointing", False) and layer.training:
        return layer._gradient_checkpointing_func(run, *inputs)
    return run(*inputs)


def compiled_layers(model: Any) -> list[Any]:
    """Return the layers to compile, or their parts without routers. Raise if the model has none."""
    layers = checkpointed_layers(model)
    routers = set(find_routers(model))
    if routers:
        layers = [part for layer in layers for part in _parts_without(routers, layer)]
    reasons = {
        "it only runs in padded rows": runs_in_rows(model),
        "transformers does not list layers of it that can be compiled separately": not layers,
    }
    if refused := [reason for reason, holds in reasons.items() if holds]:
        what = f"compile = true, and {type(model).__name__} cannot be compiled: {refused[0]}"
        raise ModelError(what=what, where=HOST.settings_file, fix="Remove it, or set compile: false")
    return layers


def _parts_without(routers: set[Any], layer: Any) -> list[Any]:
    """Return the layer if it has no routers, else those of its parts that have none and consist of parts again."""
    if not routers & set(layer.modules()):
        return [layer]
    parts = [part for part in layer.children() if not routers & set(part.modules())]
    return [part for part in parts if any(True for _ in part.children()) and not isinstance(part, nn.ModuleList)]


def _compile(model: Any) -> None:
    """Run the first batches forward and backward. Gradients, random numbers and the mode are unchanged afterwards."""
    trained = [part for part in model.parameters() if part.requires_grad]
    device, mode = trained[0].device, model.training
    devices, batches = ([], [FIRST_BATCH]) if device.type == "cpu" else ([device], [FIRST_BATCH, LARGE_BATCH])
    try:
        _check_compiler(device)
        with torch.random.fork_rng(devices, device_type=device.type if devices else "cuda"), torch.enable_grad():
            for batch in batches:
                packed = pack(batch).to(device)
                states = gathered(model, partial(packed_states, model.train(), packed))
                with repeatable():
                    if is_sharded(model):  # its gradients are sent to the processes
                        states.float().sum().backward()  # type: ignore[no-untyped-call]
                        model.zero_grad(set_to_none=True)
                    else:
                        torch.autograd.grad(states.float().sum(), trained, allow_unused=True)
    except (torch._dynamo.exc.TorchDynamoException, torch._inductor.exc.InvalidCxxCompiler) as error:
        what = f"compile = true, and torch cannot compile {type(model).__name__} ({_first_line(error)})"
        fix = "Install a C++ compiler (Debian, Ubuntu: apt-get install g++), or set compile: false"
        if " " in torch.__file__:
            fix = f"torch's compiler fails if its own path contains a space ({torch.__file__}): {fix}"
        raise ModelError(what=what, where=HOST.settings_file, fix=fix) from error
    finally:
        model.train(mode)


def _check_compiler(device: torch.device) -> None:
    """Raise if the device's kernels need a C++ compiler that is missing, even if all kernels are cached."""
    if device.type == "cpu":
        from torch._inductor.cpp_builder import get_cpp_compiler

        get_cpp_compiler()


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip()}".splitlines()[0][:200]
