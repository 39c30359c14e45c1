"""Values as JSON, so that only data passes between a program and its tests.

Values that are read have types of Python or of the setup, so a value cannot bring its own `__eq__`. Whatever else a
program returns stays in its process, and the tests get a reference to it (`objects`).
"""

from __future__ import annotations

import builtins
import enum
import importlib
import json
import operator
import sys
import types
from abc import ABC
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Generic

PREDICATES: Final = frozenset(
    name
    for kind in (str, bytes, set, float)
    for name in dir(kind)
    if name.startswith("is") or name in ("startswith", "endswith")
)
"""Methods of plain values that say yes or no."""


class NotPlainError(TypeError):
    """A value that cannot be sent."""


def _fixed(zone: tzinfo | None, at: datetime | time) -> timezone | None:
    offset = at.utcoffset()
    return zone if zone is None or type(zone) is timezone else timezone(offset) if offset is not None else None


def _clock(value: datetime | time) -> list[Any]:
    parts = [value.hour, value.minute, value.second, value.microsecond, _fixed(value.tzinfo, value), value.fold]
    return [value.year, value.month, value.day, *parts] if isinstance(value, datetime) else parts


SIMPLE: Final[dict[type, tuple[Callable[[Any], Any], Callable[..., Any]]]] = {
    tuple: (list, lambda *parts: parts),
    frozenset: (list, lambda *parts: frozenset(parts)),
    bytes: (lambda value: [value.hex()], bytes.fromhex),
    complex: (lambda value: [value.real, value.imag], complex),
    range: (lambda value: [value.start, value.stop, value.step], range),
    slice: (lambda value: [value.start, value.stop, value.step], slice),
    type(...): (lambda _: [], lambda: ...),
    type(NotImplemented): (lambda _: [], lambda: NotImplemented),
    type({}.keys()): (list, lambda *parts: dict.fromkeys(parts).keys()),
    type({}.values()): (list, lambda *parts: dict(enumerate(parts)).values()),
    type({}.items()): (list, lambda *parts: dict(parts).items()),
    types.MappingProxyType: (lambda value: [dict(value)], types.MappingProxyType),
    Fraction: (lambda value: [value.numerator, value.denominator], Fraction),
    Decimal: (lambda value: [str(value)], Decimal),
    timedelta: (lambda value: [value.days, value.seconds, value.microseconds], timedelta),
    timezone: (lambda value: [value.utcoffset(None)], timezone),
    date: (lambda value: [value.year, value.month, value.day], date),
    time: (_clock, lambda *parts: time(*parts[:-1], fold=parts[-1])),
    datetime: (_clock, lambda *parts: datetime(*parts[:-1], fold=parts[-1])),
}
"""Values that cannot change: their parts, and how they are made from them."""
CONTAINERS: Final = (list, dict, set, bytearray, deque, Counter, defaultdict, OrderedDict)
"""Values that can change in place."""
LIBRARY: Final = frozenset({"collections", "collections.abc", "datetime", "decimal", "enum", "fractions", "numbers"})
"""Modules whose classes a program may return. Others have some that are equal to everything (`unittest.mock`)."""
TYPES: Final = {
    "NoneType": type(None),
    **{name: found for name, found in vars(builtins).items() if isinstance(found, type)},
    **{found.__name__: found for found in (*SIMPLE, *CONTAINERS)},
    **{f"types.{name}": found for name, found in vars(types).items() if isinstance(found, type)},
}


class Codec:
    """One end of a connection. Both ends keep copies of the same containers, by number, and send their changes."""

    imports = False
    """True if the other end may make this one import modules of Python's library."""

    def __init__(self) -> None:
        self.classes: dict[str, type] = {}
        """The classes of the setup whose objects are sent: both ends have them."""
        self.comparing: list[type] = []
        """The classes of the setup whose objects are not sent."""
        self.shared: dict[int, Any] = {}
        """The containers that the tests have sent and the program keeps."""
        self._numbers: dict[int, int] = {}
        self._snapshots: dict[int, list[Any]] = {}
        self._queue: list[tuple[int, Any]] = []

    def learn(self, names: Mapping[str, Any], module: str) -> None:
        """Keep the classes that the setup has defined in a module, except classes that define `__eq__`.

        With such a class a program could make an object that is equal to any plain value.
        """
        defined = {name: one for name, one in names.items() if isinstance(one, type) and one.__module__ == module}
        self.comparing = [one for one in defined.values() if _compares(one)]
        self.classes = {
            name: one for name, one in defined.items() if one.__qualname__ == name and one not in self.comparing
        }

    def write(self, value: Any, **more: Any) -> bytes:
        """Return a message with a value, the containers in it, and the shared containers that have changed."""
        self._queue, done, contents = [], 0, []
        for number, one in self.shared.items():
            if not _same(_items(one), self._snapshots.get(number, [])):
                self._queue.append((number, one))
        node = self.encode(value)
        written: set[int] = set()
        while done < len(self._queue):
            number, one = self._queue[done]
            done += 1
            if number not in written:
                written.add(number)
                contents.append([number, *self._content(one)])
                if number in self.shared:
                    self._snapshots[number] = _items(one)
        self._queue = []
        return json.dumps({"value": node, "contents": contents, **more}).encode()

    def read(self, text: bytes) -> tuple[Any, dict[str, Any]]:
        """Return the value in a message, and the message. Raise ValueError for any other input."""
        try:
            message = json.loads(text)
            containers = {entry[0]: self._container(*entry[:3]) for entry in message["contents"]}
            for objects in (True, False):  # what a set holds must be whole before it is hashed
                for number, kind, _, items in message["contents"]:
                    if (kind == "object") == objects:
                        _fill(containers[number], [self._decode(item, containers) for item in items])
            for number in containers.keys() & self.shared.keys():
                self._snapshots[number] = _items(containers[number])
            return self._decode(message["value"], containers), message
        except (TypeError, LookupError, AttributeError, RecursionError, ArithmeticError, ValueError) as error:
            raise ValueError(f"this is not a value: {error!r:.100}") from error

    def encode(self, value: Any) -> Any:
        """Return a value as JSON. Containers in it are queued."""
        kind = type(value)
        if value is None or kind in (bool, str, float):
            return value
        if kind is int:
            return ["int", hex(value)]  # a decimal of more than 4,300 digits would be refused
        if kind in SIMPLE:
            parts = list(SIMPLE[kind][0](value))
            return [kind.__name__, [self.encode(part) for part in parts]]
        if kind in CONTAINERS or self._is_of_setup(kind):
            return self.container(value)
        if issubclass(kind, enum.Enum) and self.classes.get(kind.__name__) is kind:
            return ["member", kind.__name__, value.name]
        if issubclass(kind, tuple) and self.classes.get(kind.__name__) is kind:
            return ["made", kind.__name__, [self.encode(part) for part in list(value)]]
        if issubclass(kind, type):
            return self.class_of(value)
        return self.error(value) if issubclass(kind, BaseException) else self.other(value)

    def container(self, value: Any) -> Any:
        """Return a reference to a container, and send its content."""
        number = self._numbers.get(id(value))
        if number is None:
            number = self.new_number(value)
        self._queue.append((number, value))
        return ["shared", number]

    def new_number(self, value: Any) -> int:
        """Return a number for a container that this end sends for the first time."""
        raise NotImplementedError

    def share(self, number: int, value: Any) -> None:
        """Register a container whose changes are sent."""
        self.shared[number] = value
        self._numbers[id(value)] = number

    def drop(self, number: int) -> Any:
        """Forget a container, and return it."""
        value = self.shared.pop(number)
        del self._numbers[id(value)]
        self._snapshots.pop(number, None)
        return value

    def keep(self) -> None:
        """Remember the current content of the shared containers."""
        self._snapshots = {number: _items(value) for number, value in self.shared.items()}

    def class_of(self, value: type) -> Any:
        """Return a class as JSON."""
        name = value.__name__
        if self.classes.get(name) is value:
            return ["class", name]
        known_name = next((known for known, one in TYPES.items() if one is value), None)
        if known_name is not None:
            return ["type", known_name]
        if value.__module__.partition(".")[0] in sys.stdlib_module_names:
            return ["library", value.__module__, value.__qualname__, self.other(value)]
        return self.other(value)

    def error(self, value: BaseException) -> Any:
        """Return an exception as JSON."""
        raise NotImplementedError

    def other(self, value: Any) -> Any:
        """Return a reference to a value that stays at this end."""
        raise NotImplementedError

    def referred(self, node: list[Any], containers: dict[int, Any]) -> Any:
        """Return the value behind a reference from the other end."""
        raise NotImplementedError

    def _is_of_setup(self, kind: type) -> bool:
        """Tell whether a class of the setup has nothing but attributes."""
        known = {*self.classes.values()}
        return kind in known and known.union((object, ABC, Generic)).issuperset(kind.__mro__)

    def _content(self, value: Any) -> list[Any]:
        kind = type(value)
        extra = value.maxlen if kind is deque else value.default_factory if kind is defaultdict else None
        name, more = ("object", kind.__name__) if kind not in CONTAINERS else (kind.__name__, self.encode(extra))
        items = _items(value)
        return [name, more, [self.encode(item) for item in items]]

    def _container(self, number: int, kind: str, extra: Any) -> Any:
        if number in self.shared:
            return self.shared[number]
        if kind == "object":
            return object.__new__(self.classes[extra])
        made = TYPES[kind]
        if made not in CONTAINERS:
            raise ValueError(f"{kind} is not a container")
        more = self._decode(extra, {})
        return deque(maxlen=more) if made is deque else defaultdict(more) if made is defaultdict else made()

    def _decode(self, node: Any, containers: dict[int, Any]) -> Any:
        match node:
            case None | bool() | str() | float():
                return node
            case ["int", str(text)]:
                return int(text, 16)
            case ["shared", int(number)]:
                return containers[number] if number in containers else self.shared[number]
            case ["member", str(name), str(member)]:
                return self.classes[name][member]  # type: ignore[index]
            case ["made", str(name), list(parts)]:
                return self.classes[name]._make([self._decode(part, containers) for part in parts])  # type: ignore[attr-defined]
            case ["class", str(name)]:
                return self.classes[name]
            case ["type", str(name)]:
                return TYPES[name]
            case ["library", str(module), str(name), other]:
                made = library_class(module, name, self.imports)
                known = made is not None and (self.imports or module in LIBRARY or issubclass(made, BaseException))
                return made if known else self._decode(other, containers)
            case [str(kind), list(parts)] if TYPES.get(kind) in SIMPLE:
                return SIMPLE[TYPES[kind]][1](*[self._decode(part, containers) for part in parts])
            case [str(), *_]:
                return self.referred(node, containers)
            case _:
                raise ValueError(f"{node!r:.100}")


def _compares(kind: type) -> bool:
    """Tell whether a class has an `__eq__` that somebody has written."""
    code = getattr(getattr(kind, "__eq__", None), "__code__", None)
    return code is not None and code.co_filename == "<setup>"


def check_attributes(names: Iterable[Any]) -> None:
    """Raise ValueError for attributes with which an object of the program could claim to be a plain value."""
    for name in names:
        if type(name) is not str or name.startswith("__") or name in PREDICATES:
            raise ValueError("an object has an attribute that it cannot have")


def library_class(module: str, name: str, imports: bool = False) -> type | None:  # noqa: FBT001, FBT002
    """Return a class of Python's library; None if there is no such class, or this process has not imported it."""
    if module.partition(".")[0] not in sys.stdlib_module_names or not (imports or module in sys.modules):
        return None
    loaded: Any = importlib.import_module(module)
    for part in name.split("."):
        loaded = getattr(loaded, part, None)
    return loaded if isinstance(loaded, type) else None


def _items(value: Any) -> list[Any]:
    """Return what a container holds, in a flat list."""
    if issubclass(type(value), dict):
        return [part for pair in value.items() for part in pair]
    if type(value) is bytearray:
        return [bytes(value)]
    return list(value) if type(value) in CONTAINERS else [part for pair in _attributes(value) for part in pair]


def _attributes(value: Any) -> list[tuple[str, Any]]:
    lists = [vars(kind).get("__slots__", ()) for kind in type(value).__mro__]
    slots = [name for names in lists for name in ([names] if isinstance(names, str) else names)]
    named = {
        name: getattr(value, name) for name in slots if name not in ("__dict__", "__weakref__") and hasattr(value, name)
    }
    return [*named.items(), *getattr(value, "__dict__", {}).items()]


def _same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and (
        all(map(operator.is_, one, other)) or (len(one) == 1 and type(one[0]) is bytes and one == other)
    )


def _fill(value: Any, items: list[Any]) -> None:
    """Give a container this content in place."""
    pairs = list(zip(items[::2], items[1::2], strict=True)) if len(items) % 2 == 0 else []
    match value:
        case dict():
            value.clear()
            for key, item in pairs:
                value[key] = item
        case list():
            value[:] = items
        case bytearray():
            value[:] = items[0]
        case set():
            value.clear()
            value.update(items)
        case deque():
            value.clear()
            value.extend(items)
        case _:
            check_attributes(name for name, _ in pairs)
            for name in {name for name, _ in _attributes(value)} - {name for name, _ in pairs}:
                object.__delattr__(value, name)
            for name, item in pairs:
                object.__setattr__(value, name, item)
