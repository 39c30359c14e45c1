"""CUDA graphs of the second device: the operators of a capture, run again into the memory of their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.second_device.waiting import WATCH


class CUDAGraph:
    """What torch.cuda.CUDAGraph is to the project."""

    def __init__(self, keep_graph: bool = False) -> None:
        self.steps: list[tuple[bool, Any, Any, Any, Any]] = []

    def replay(self) -> None:
        """Run what was captured, each operator by the kernel that was chosen then."""
        strict, warns = (
            torch.are_deterministic_algorithms_enabled(),
            torch.is_deterministic_algorithms_warn_only_enabled(),
        )
        try:
            self._replay(warns)
        finally:
            torch.use_deterministic_algorithms(strict, warn_only=warns)

    def _replay(self, warns: bool) -> None:
        for strict, function, args, kwargs, out in self.steps:
            torch.use_deterministic_algorithms(strict, warn_only=warns)
            new = function(*args, **kwargs)
            if out is None or function._overloadpacket.__name__.startswith(("empty", "new_empty")):
                continue
            for one, other in zip(_tensors(out), _tensors(new), strict=True):
                one.copy_(other)

    def reset(self) -> None:
        """Forget what was captured."""
        self.steps = []


class Capture(TorchDispatchMode):
    """What torch.cuda.graph is: operators are recorded, and their results hold NaN until the first replay."""

    def __init__(
        self, graph: CUDAGraph, pool: Any = None, stream: Any = None, capture_error_mode: str = "global"
    ) -> None:
        super().__init__()
        self._graph = graph

    def __enter__(self) -> Any:
        WATCH.captures += 1
        return super().__enter__()

    def __exit__(self, *found: Any) -> None:
        super().__exit__(*found)
        WATCH.captures -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, strict = kwargs or {}, torch.are_deterministic_algorithms_enabled()
        changed = [value for value, written in _arguments(func, args, kwargs) if written]
        if changed:  # recorded, not run
            self._graph.steps.append((strict, func, args, kwargs, None))
            return changed[0] if len(changed) == 1 else tuple(changed)
        out = func(*args, **kwargs)
        given = {one.untyped_storage()._cdata for one in _tensors((args, kwargs))}
        made = [one for one in _tensors(out) if one.untyped_storage()._cdata not in given]
        if made:  # else a view
            self._graph.steps.append((strict, func, args, kwargs, out))
        for one in made:
            if one.is_floating_point():
                one.fill_(float("nan"))
        return out


def _tensors(parts: Any) -> list[Tensor]:
    return [one for one in torch.utils._pytree.tree_leaves(parts) if isinstance(one, Tensor)]


def _arguments(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, bool]]:
    """Each argument that was given, and whether the operator writes to it."""
    for place, argument in enumerate(func._schema.arguments):
        written = argument.alias_info is not None and argument.alias_info.is_write
        if place < len(args):
            yield args[place], written
        elif argument.name in kwargs:
            yield kwargs[argument.name], written
