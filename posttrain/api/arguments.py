"""The arguments of a call as text. Equal arguments give equal texts, which identify the checkpoints of an output."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, Final

import torch

from posttrain.settings.user_code import PACKAGES

ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


def plain_arguments(value: Any, seen: set[int] | None = None) -> str:
    """Return arguments as text: plain values, the code of functions, and weights; other objects by their `repr`.

    For a function, its code, its captured values and the names that it uses from its file count. `seen`: functions and
    classes that are in the text already.
    """
    seen = set() if seen is None else seen
    if isinstance(value, Mapping):
        keys = sorted(value, key=str)
        return "{" + ",".join(f"{key!r}:{plain_arguments(value[key], seen)}" for key in keys) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(plain_arguments(part, seen) for part in value) + "]"
    if isinstance(value, set | frozenset):
        return "{" + ",".join(sorted(plain_arguments(part, seen) for part in value)) + "}"
    if isinstance(value, torch.Tensor):
        return digest(value)
    if isinstance(value, torch.nn.Module):
        return plain_arguments({name: digest(part) for name, part in value.state_dict().items()})
    if isinstance(value, CodeType):
        return plain_arguments([value.co_code, value.co_names, value.co_varnames, value.co_consts], seen)
    if isinstance(value, FunctionType | type):
        return _once(value, seen)
    if isinstance(value, MethodType):
        return plain_arguments(value.__func__, seen) + _object(value.__self__, seen)
    if isinstance(value, functools.partial):
        return plain_arguments([value.func, value.args, value.keywords], seen)
    if is_dataclass(value) or (callable(value) and hasattr(value, "__dict__")):
        return _object(value, seen)
    return ADDRESS.sub("", repr(value.tolist() if hasattr(value, "tolist") else value))


def digest(weight: torch.Tensor) -> str:
    """Return a digest of a tensor's bytes."""
    plain = weight.detach().cpu().contiguous().flatten().view(torch.uint8)
    return hashlib.sha256(plain.numpy().tobytes()).hexdigest()[:16]


def _object(value: Any, seen: set[int]) -> str:
    """Return a text of an object's class and fields."""
    if isinstance(value, type) or not (hasattr(value, "__dict__") or is_dataclass(value)) or id(value) in seen:
        return plain_arguments(type(value), seen)
    seen.add(id(value))
    if hasattr(value, "__dict__"):
        return plain_arguments([type(value), vars(value)], seen)
    return plain_arguments([type(value), {part.name: getattr(value, part.name) for part in fields(value)}], seen)


def _once(value: Any, seen: set[int]) -> str:
    """Return the text of a function or class, or only its name if the text has it already."""
    name = f"{value.__module__}.{value.__qualname__}"
    if id(value) in seen:
        return name
    seen.add(id(value))
    if isinstance(value, type):
        is_users = not _is_installed(value.__module__, None)
        return name + plain_arguments((value.__bases__, dict(_members(value))) if is_users else (), seen)
    cells = [cell.cell_contents for cell in value.__closure__ or () if cell != type(cell)()]
    parts: tuple[Any, ...] = (cells, value.__defaults__, value.__kwdefaults__)
    if not _is_installed(value.__module__, value.__code__):
        known = value.__globals__
        named = {other: known[other] for other in _names(value.__code__) if other in known}
        parts = (*parts, value.__code__, named)
    return name + plain_arguments(parts, seen)


def _members(of: type) -> Iterator[tuple[str, Any]]:
    """Return the functions and the plain values of a class."""
    for name, part in vars(of).items():
        function = getattr(part, "__func__", getattr(part, "fget", part))
        if isinstance(function, FunctionType) or (isinstance(part, str | int | float) and not name.startswith("__")):
            yield name, function


def _names(code: CodeType) -> set[str]:
    """Return the names that a function and its inner functions use."""
    inner = [_names(part) for part in code.co_consts if isinstance(part, CodeType)]
    return set(code.co_names).union(*inner)


def _is_installed(module: str, code: CodeType | None) -> bool:
    """Tell whether code belongs to Python, an installed package or posttrain. Checkpoints record these anyway."""
    if module == "__main__" and code is None:  # a script of the user's, whatever has started it
        return False
    file = code.co_filename if code is not None else getattr(sys.modules.get(module), "__file__", None) or ""
    root = module.partition(".")[0]
    return root in sys.stdlib_module_names or root in ("builtins", "posttrain") or bool(PACKAGES & {*Path(file).parts})
