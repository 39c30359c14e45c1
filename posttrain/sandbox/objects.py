"""References to a program's objects, and the operations that tests may use on them.

The program could answer yes to `x == 3`. So it is never asked for an operator between an object and a plain value. If
the object extends `list`, `int` etc., the tests read its plain value and compare that; otherwise it is an error.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from posttrain.sandbox.values import CONTAINERS, PREDICATES, SIMPLE, NotPlainError

PLAIN: Final = (type(None), bool, int, float, str, *SIMPLE, *CONTAINERS)
ASK: Final = (
    "len reversed str repr hash format int float complex bytes round dir neg pos invert abs index trunc floor ceil "
    "getitem setitem delitem enter copy deepcopy bool"
)
"""Special methods that the program answers: no expected value is sent."""
BINARY: Final = "lt le gt ge add sub mul truediv floordiv mod pow matmul and or xor lshift rshift divmod"
MOST_AHEAD, PLAIN_BEFORE = 256, 64
"""Number of values requested from an iterator at once, and number of plain values before that."""


@dataclass
class Ahead:
    """Values of an iterator that have arrived but are not used yet."""

    values: deque[Any] = field(default_factory=deque)
    end: BaseException | None = None
    plain: int = 0


class ProgramObject:  # noqa: PLW1641  it gets its `__hash__` below
    """An object in the program's process."""

    __slots__ = ("_posttrain_ahead", "_posttrain_base", "_posttrain_kind", "_posttrain_place", "_posttrain_remote")

    def __init__(self, remote: Any, place: int, kind: str, base: str) -> None:
        for name, value in (("remote", remote), ("place", place), ("kind", kind), ("base", base)):
            object.__setattr__(self, f"_posttrain_{name}", value)
        object.__setattr__(self, "_posttrain_ahead", Ahead())

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_posttrain_") or name in _OWN:
            return object.__getattribute__(self, name)
        remote = self._posttrain_remote
        if name == "__class__":  # it is read by Python and its library, which need a class
            kind = remote.ask("type", self)
            return kind if issubclass(type(kind), type) else type(self)
        if name in PREDICATES:
            if self._posttrain_base and remote.ask("defined", self, name) != "own":
                return getattr(remote.ask("value", self), name)
            remote.ask("getattr", self, name)
            why = f"the program is not asked for {name} of its {self._posttrain_kind}"
            raise remote.refuse(f"{why}, since it could answer yes to any value. Compare an attribute, str() or list()")
        return remote.ask("getattr", self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._posttrain_remote.ask("setattr", self, name, value)

    def __delattr__(self, name: str) -> None:
        self._posttrain_remote.ask("delattr", self, name)

    def __iter__(self) -> Iterator[Any]:
        remote = self._posttrain_remote
        if self._posttrain_base and remote.ask("defined", self, "__iter__") != "own":
            return iter(remote.ask("plain", self))
        return remote.ask("iter", self)  # type: ignore[no-any-return]

    def __next__(self) -> Any:
        remote = self._posttrain_remote
        if self._posttrain_kind == "coroutine":  # it needs the event loop, which is in the process of the tests
            raise remote.refuse("a coroutine of the program cannot be awaited here")
        ahead = self._posttrain_ahead
        if not ahead.values and ahead.end is None:
            many = MOST_AHEAD if ahead.plain >= PLAIN_BEFORE else 1
            values, ahead.end = remote.ask("next", self, many)
            ahead.values.extend(values)
            ahead.plain += (
                len(values) if all(type(value) in (bool, int, float, str) for value in values) else -PLAIN_BEFORE
            )
        if ahead.values:
            return ahead.values.popleft()
        end, ahead.end = ahead.end, None
        if isinstance(end, StopIteration):
            raise end
        return remote.result("raised", end)

    def __eq__(self, other: object) -> Any:
        remote = self._posttrain_remote
        if is_object(other):
            return remote.ask("eq", self, other)
        if self._posttrain_base:
            return remote.ask("value", self) == other
        kind, strange = self._posttrain_kind, type(other) not in PLAIN
        named = kind[:1].isupper() and bool({kind, f".{kind}"} & remote.words)
        asked = strange or (other is not None and named)
        defined = remote.ask("defined", self, "__eq__") if asked else ""
        if defined == "own" or (defined and strange):
            raise _between(self, "==", other)
        return NotImplemented

    def __ne__(self, other: object) -> Any:
        if is_object(other):
            return self._posttrain_remote.ask("ne", self, other)
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __contains__(self, item: Any) -> bool:
        remote = self._posttrain_remote
        defined = remote.ask("defined", self, "__contains__")
        if is_object(item) and defined:
            return bool(remote.ask("contains", self, item))
        if defined == "own":
            raise _between(self, "in", item)
        values: Iterable[Any] = remote.ask("value", self) if self._posttrain_base else self
        return item in values if self._posttrain_base else any(one is item or one == item for one in values)

    def __exit__(self, kind: object, error: BaseException | None, at: object) -> Any:
        return self._posttrain_remote.ask("exit", self, error)

    def __instancecheck__(self, value: Any) -> bool:
        return self._posttrain_remote.is_kind(value, self) if is_object(value) else False

    def __mro_entries__(self, bases: object) -> Any:
        raise self._posttrain_remote.refuse("a class of the tests cannot extend a class of the program")

    def __reduce_ex__(self, protocol: object) -> Any:
        raise self._posttrain_remote.refuse("an object of the program cannot be pickled")


class ProgramFunction(ProgramObject):
    """An object in the program's process that can be called."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return self._posttrain_remote.ask("call", self, *args, **kwargs)


def is_object(value: Any) -> bool:
    """Tell whether a value is a reference to an object of the program."""
    return type(value) in (ProgramObject, ProgramFunction)


def _asks(action: str) -> Callable[..., Any]:
    def method(self: ProgramObject, *args: Any) -> Any:
        return self._posttrain_remote.ask(action, self, *args[: 0 if action == "deepcopy" else None])

    return method


def _binary(name: str, reflected: bool) -> Callable[..., Any]:  # noqa: FBT001
    action = f"{name}_" if name in ("and", "or") else name
    special = f"__{'r' * reflected}{name}__"
    does: Any = divmod if name == "divmod" else getattr(operator, action)

    def method(self: ProgramObject, other: Any, *rest: Any) -> Any:
        remote = self._posttrain_remote
        pair = (other, self) if reflected else (self, other)
        if is_object(other) or (action == "or_" and issubclass(type(other), type)):
            return remote.ask(action, *pair, *rest)
        defined = remote.ask("defined", self, special)
        if self._posttrain_base and defined != "own":
            plain = remote.ask("value", self)
            return does(other, plain) if reflected else does(plain, other)
        if not defined:
            kinds = [one._posttrain_kind if one is self else type(one).__name__ for one in pair]
            raise remote.blame(TypeError(f"unsupported operand type(s) for {special}: '{kinds[0]}' and '{kinds[1]}'"))
        raise _between(self, special, other)

    return method


def _in_place(name: str) -> Callable[..., Any]:
    """Return `+=` etc.: the program changes a container; any other object is left to `+`."""

    def method(self: ProgramObject, other: Any) -> Any:
        if self._posttrain_base not in ("list", "dict", "set", "bytearray"):
            return NotImplemented
        result = self._posttrain_remote.ask(f"i{name}", self, other)
        if result is not self:
            raise _between(self, f"__i{name}__", other)
        return self

    return method


def _between(value: ProgramObject, what: str, other: Any) -> NotPlainError:
    why = f"the program is not asked for '{what}' between its {value._posttrain_kind} and a plain value"
    fix = "since it could answer yes to any value. Compare an attribute, str() or list()"
    refused: NotPlainError = value._posttrain_remote.refuse(f"{why} ({type(other).__name__}), {fix}")
    return refused


for _name in ASK.split():
    setattr(ProgramObject, f"__{_name}__", _asks(_name))
for _name in BINARY.split():
    setattr(ProgramObject, f"__{_name}__", _binary(_name, reflected=False))
    if _name not in ("lt", "le", "gt", "ge"):
        setattr(ProgramObject, f"__r{_name}__", _binary(_name, reflected=True))
for _name in ("add", "mul", "or", "and", "sub", "xor"):
    setattr(ProgramObject, f"__i{_name}__", _in_place(_name))
_OWN: Final = frozenset(
    name
    for kind in (ProgramObject, ProgramFunction)
    for name in vars(kind)
    if name not in ("__doc__", "__module__", "__init__", "__slots__")
) - {"__str__", "__repr__", "__hash__", "__format__", "__dir__", "__len__", "__bool__", "__copy__"}
