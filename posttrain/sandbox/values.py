"""Plain values as JSON, so that only data passes between a program and its tests.

Values that are read have built-in types, so a value cannot bring its own `__eq__`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, ItemsView, Iterator, KeysView, ValuesView
from typing import Any, Final

BUILT_IN: Final[dict[str, Callable[[Any], Any]]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "iterator": iter,
}
MOST_ITEMS: Final = 1_000_000
"""The most items of an iterator, which may be endless."""


class NotPlainError(TypeError):
    """A value that cannot be sent."""


def dumps(value: Any) -> bytes:
    """Return a value of built-in types as JSON. Iterators are consumed."""
    return json.dumps(_plain(value)).encode()


def loads(text: bytes) -> Any:
    """Return the value that `dumps` wrote. Raise ValueError for anything else."""
    try:
        return _value(json.loads(text))
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"this is not a value: {error!r:.100}") from error


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | str() | float():
            return value
        case int():
            return ["int", hex(value)]  # a decimal of more than 4,300 digits would be refused
        case dict():
            return ["dict", [[_plain(key), _plain(item)] for key, item in value.items()]]
        case bytes() | bytearray():
            return ["bytes", bytes(value).hex()]
        case complex():
            return ["complex", value.real, value.imag]
        case list() | tuple() | set() | frozenset():
            kind = next(
                name for name, type_ in BUILT_IN.items() if isinstance(type_, type) and isinstance(value, type_)
            )
            return [kind, [_plain(item) for item in value]]
        case range():
            return ["range", value.start, value.stop, value.step]
        case Iterator() | KeysView() | ValuesView() | ItemsView():
            return ["iterator", [_plain(item) for item in _limited(iter(value))]]
        case _:
            raise NotPlainError(f"a {type(value).__name__} is not plain data, which alone can be sent")


def _limited(values: Iterator[Any]) -> Iterator[Any]:
    for number, value in enumerate(values):
        if number == MOST_ITEMS:
            raise NotPlainError(f"an iterator gives more than {MOST_ITEMS:,} values")
        yield value


def _value(plain: Any) -> Any:
    match plain:
        case None | bool() | str() | float():
            return plain
        case ["int", str(text)]:
            return int(text, 16)
        case ["dict", list(pairs)]:
            return {_value(key): _value(item) for key, item in pairs}
        case ["bytes", str(text)]:
            return bytes.fromhex(text)
        case ["complex", float(real), float(imaginary)]:
            return complex(real, imaginary)
        case ["range", int(start), int(stop), int(step)]:
            return range(start, stop, step)
        case [str(kind), list(items)] if kind in BUILT_IN:
            return BUILT_IN[kind]([_value(item) for item in items])
        case _:
            raise ValueError(f"this is not a value: {plain!r:.100}")
