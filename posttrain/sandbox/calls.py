"""The program's end of the connection: it executes the tests' requests, and calls functions that the tests pass."""

from __future__ import annotations

import builtins
import collections
import copy
import io
import math
import operator
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, Final

from posttrain.sandbox.messages import receive, send
from posttrain.sandbox.values import Codec, library_class

SHOWN: Final = 300
"""Maximum number of characters of an error in a reason."""
BASES: Final[dict[type, Callable[[Any], Any]]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: bytes.__getitem__(value, slice(None)),
    bytearray: lambda value: bytearray(bytearray.__getitem__(value, slice(None))),
    tuple: lambda value: tuple.__getitem__(value, slice(None)),
    list: list.copy,
    frozenset: lambda value: frozenset().union(value),
    set: lambda value: set().union(value),
    dict: dict.copy,
    collections.deque: list,
    collections.UserDict: lambda value: dict(value.data),
    collections.UserList: lambda value: list(value.data),
    collections.UserString: lambda value: str(value.data),
    collections.ChainMap: dict,
}
"""How the plain value is made from an object that extends one of these types."""
OPERATORS: Final = (
    "eq ne lt le gt ge add sub mul truediv floordiv mod pow matmul and_ or_ xor lshift rshift neg pos invert abs index "
    "contains getitem setitem delitem iadd imul ior iand isub ixor"
)
FUNCTIONS: Final = (
    "len iter reversed str repr bool hash format int float complex bytes round dir getattr setattr delattr type "
    "isinstance issubclass divmod"
)


class Program(Codec):
    """The functions and objects of a program, for tests in another process."""

    imports = True

    def __init__(self, connection: socket.socket, look_up: Callable[[str], Any]) -> None:
        super().__init__()
        self._connection = connection
        self._objects: list[Any] = []
        self._places: dict[int, int] = {}
        """The place of each object in `_objects`, by its id."""
        self._functions: dict[int, Callable[..., Any]] = {}
        self._numbers_of: dict[int, int] = {}
        """The number of each of these functions, by its id."""
        self._lock = threading.RLock()
        self._output = io.StringIO()
        self._new = 0
        self._fresh: dict[int, int] = {}
        self._does: dict[str, Callable[..., Any]] = {
            **{name: getattr(operator, name) for name in OPERATORS.split()},
            **{name: getattr(builtins, name) for name in FUNCTIONS.split()},
            **{name: getattr(math, name) for name in ("trunc", "floor", "ceil")},
            "name": look_up,
            "call": _call,
            "capture": self._capture,
            "next": _next,
            "enter": _enter,
            "exit": _exit,
            "plain": _plain,
            "value": _plain,
            "defined": _defined,
            "copy": copy.copy,
            "deepcopy": copy.deepcopy,
        }
        self._held = sys.maxsize
        self.encode(([],))
        self._queue.clear()
        self._held = self._ignored_references = self._count
        """The number of references to a container that the program does not keep, where `container` counts them."""

    def answer(self) -> None:
        """Execute the tests' requests until they hang up."""
        while (request := receive(self._connection)) is not None:
            self._answer(request)

    def _answer(self, request: bytes) -> None:
        reply = self._done(request)
        released = self._release()
        send(self._connection, reply[:-1] + f', "released": {released}}}'.encode())

    def _done(self, request: bytes) -> bytes:
        try:
            (action, args, kwargs), _ = self.read(request)
            self._held = sys.maxsize if action == "value" else self._ignored_references
            return self.write(("returned", self._does[action](*args, **dict(kwargs))))
        except BaseException as error:  # noqa: BLE001  whatever a program may raise
            return self._raised(error)

    def loaded(self) -> None:
        """Tell the tests that the program's definitions have run."""
        send(self._connection, self.write(("returned", None)))

    def raised(self, error: BaseException) -> None:
        """Tell the tests that the program's definitions failed."""
        send(self._connection, self._raised(error))

    def _raised(self, error: BaseException) -> bytes:
        try:
            return self.write(("raised", error))
        except BaseException:  # noqa: BLE001  of an exception that cannot be shown
            return self.write(("raised", RuntimeError(type(error).__name__)))

    def _release(self) -> list[int]:
        """Forget the containers of the tests that the program does not keep."""
        self._snapshots.clear()
        released = []
        for number in sorted(self.shared):
            value = self.drop(number)
            if sys.getrefcount(value) > _ALONE:
                self.share(number, value)
            else:
                released.append(number)
        self.keep()
        return released

    def _container(self, number: int, kind: str, extra: Any) -> Any:
        container = super()._container(number, kind, extra)
        if number not in self.shared:
            self.share(number, container)
        return container

    def container(self, value: Any) -> Any:
        """Return a container of the program as a value, or as a reference if the program keeps it."""
        self._count = sys.getrefcount(value)
        if self._count > self._held and id(value) not in self._numbers and id(value) not in self._fresh:
            return self.other(value)
        return super().container(value)

    def new_number(self, value: Any) -> int:
        """Return a new number for a message."""
        if id(value) not in self._fresh:
            self._new += 1
            self._fresh[id(value)] = -self._new
        return self._fresh[id(value)]

    def write(self, value: Any, **more: Any) -> bytes:
        """Return a message, with the program's output if the tests read it."""
        self._fresh.clear()
        printed = self._output.getvalue()
        self._output.seek(0)
        self._output.truncate()
        return super().write(value, printed=printed, **more)

    def _capture(self) -> None:
        sys.stdout = self._output

    def error(self, value: BaseException) -> Any:
        """Return an exception: its class, arguments, text and attributes."""
        thrown = vars(value).get("_posttrain_thrown")
        if isinstance(thrown, int):
            return ["thrown", thrown]
        attributes_of = {name: one for name, one in vars(value).items() if not name.startswith("__")}
        text = str(value)[:10_000]
        cause = self.error(value.__cause__) if value.__cause__ is not None else None
        kind, args, attributes = (
            self.encode(part) for part in (type(value), tuple(value.args), tuple(attributes_of.items()))
        )
        return ["error", kind, args, text, attributes, cause]

    def other(self, value: Any) -> Any:
        """Return a reference to an object."""
        if isinstance(value, ModuleType) and value.__name__ in sys.stdlib_module_names:
            return ["module", value.__name__]
        if id(value) in self._numbers_of:
            return ["own", self._numbers_of[id(value)]]
        if id(value) not in self._places:
            self._places[id(value)] = len(self._objects)
            self._objects.append(value)
        place, kind = self._places[id(value)], type(value)
        if isinstance(value, type) and issubclass(value, BaseException):
            attributes_of = tuple(
                (name, _constant(one)) for name, one in vars(value).items() if not name.startswith("__")
            )
            bases = [self.encode(one) for one in value.__bases__]
            return ["error class", place, value.__name__, bases, self.encode(attributes_of)]
        base = next((base.__name__ for base in BASES if issubclass(kind, base)), "")
        return ["object", place, kind.__name__, base, callable(value)]

    def referred(self, node: list[Any], containers: dict[int, Any]) -> Any:
        """Return an object of the program, a function of the tests, or an exception."""
        match node:
            case ["object", int(place)]:
                return self._objects[place]
            case ["function", int(number), name, doc, parameters]:
                if number not in self._functions:
                    made = self._functions[number] = self._function(number, parameters)
                    made.__name__, made.__qualname__, made.__doc__ = name, name, doc
                    self._numbers_of[id(made)] = number
                return self._functions[number]
            case ["iterator", step]:
                return _stepped(self._decode(step, containers))
            case ["error", kind, args, thrown]:
                made, parts = self._decode(kind, containers), self._decode(args, containers)
                error = made.__new__(made, *parts)  # its own arguments may be others
                error.args, error._posttrain_thrown = parts, thrown
                return error
        raise ValueError(f"{node!r:.100}")

    def _function(self, number: int, parameters: list[str] | None) -> Any:
        """Return a function that calls one of the tests, with the same number of parameters if that is fixed."""

        def function(*args: Any, **kwargs: Any) -> Any:
            with self._lock:  # the program may call from several threads
                send(self._connection, self.write(("callback", number, args, tuple(kwargs.items()))))
                while (text := receive(self._connection)) is not None:
                    (kind, *results), _ = self.read(text)
                    if kind == "returned":
                        return results[0]
                    if kind == "raised":
                        raise results[0]
                    self._answer(text)
            raise SystemExit("the tests have ended")

        if parameters is None:
            return function
        names = ", ".join(parameters)
        return self._does["name"](f"lambda _posttrain: lambda {names}: _posttrain({names})")(function)


def _call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _plain(value: Any) -> Any:
    return next(make(value) for base, make in BASES.items() if issubclass(type(value), base))


def _defined(value: Any, name: str) -> str:
    """Tell whether an object's class has an attribute from the library, or of its own; empty if it has none."""
    kind = next((kind for kind in type(value).__mro__ if name in vars(kind)), None)
    if kind is None or kind is object or vars(kind)[name] is None:
        return ""
    return "library" if library_class(kind.__module__, kind.__qualname__) is kind else "own"


def _next(value: Any, many: int) -> tuple[tuple[Any, ...], BaseException | None]:
    """Return the next values of an iterator, and what has ended it."""
    values: list[Any] = []
    try:
        while len(values) < many:
            values.append(next(value))
    except BaseException as error:  # noqa: BLE001
        return tuple(values), error
    return tuple(values), None


def _stepped(step: Callable[[], Any]) -> Iterator[Any]:
    """Yield what a function returns until it raises StopIteration."""
    while True:
        try:
            value = step()
        except StopIteration:
            return
        yield value


def _constant(value: Any) -> Any:
    return value if value is None or type(value) in (bool, int, float, str) else NotImplemented


def _enter(value: Any) -> Any:
    return type(value).__enter__(value)


def _exit(value: Any, error: BaseException | None) -> Any:
    return type(value).__exit__(value, type(error) if error else None, error, None)


def _alone() -> int:
    box: list[list[Any]] = [[]]
    value = box.pop()
    return sys.getrefcount(value)


_ALONE: Final = _alone()
"""The number of references to a value that only one variable holds."""
