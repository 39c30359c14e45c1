"""The tests' end of the connection: it sends requests to the program, and calls functions of the tests for it."""

from __future__ import annotations

import importlib
import inspect
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType, UnionType
from typing import Any, Final

from posttrain.sandbox.messages import receive, send
from posttrain.sandbox.objects import PLAIN, ProgramFunction, ProgramObject, is_object
from posttrain.sandbox.values import TYPES, Codec, NotPlainError, check_attributes, library_class

BASES: Final[tuple[Any, ...]] = (int, float, complex, str, bytes, bytearray, tuple, list, frozenset, set, dict)
EMPTY: Final = {"__module__", "__doc__", "__dict__", "__weakref__", "__firstlineno__", "__static_attributes__"}
"""The attributes of a class with an empty body."""
STARS: Final = inspect.CO_VARARGS | inspect.CO_VARKEYWORDS
NEVER_CAUGHT: Final = (StopIteration, StopAsyncIteration)
"""They would silently end a loop in the tests."""


class Remote(Codec):
    """A program in another process."""

    def __init__(self, connection: socket.socket) -> None:
        super().__init__()
        self._connection = connection
        self._lock = threading.RLock()
        self.ended = ""
        """Why it answers no more."""
        self.fault = ""
        """The impossible request of the tests."""
        self.depth = 0
        """How many functions of the tests the program is calling."""
        self.words: set[str] = set()
        """The names in the text of the tests."""
        self.raised = 0
        """How many exceptions the program has raised."""
        self.objects: dict[int, Any] = {}
        self._blamed: list[BaseException] = []
        self._functions: dict[int, Any] = {}
        self._errors: list[BaseException] = []
        self._next = 0

    def blames(self, error: BaseException) -> bool:
        """Tell whether an exception came from the program."""
        return any(error is one for one in self._blamed)

    def blame(self, error: BaseException) -> BaseException:
        """Return an exception marked as raised by the program."""
        self._blamed.append(error)
        return error

    def refuse(self, why: str) -> NotPlainError:
        """Return the exception for an impossible request of the tests: the program is not at fault."""
        line = self.line()
        self.fault = self.fault or (f"line {line} of the tests: {why}" if line else why)
        return NotPlainError(why)

    @staticmethod
    def line() -> int:
        """Return the line of the tests that runs now; 0 if there is none."""
        frame: Any = sys._getframe()
        while frame is not None and frame.f_code.co_filename != "<tests>":
            frame = frame.f_back
        return frame.f_lineno if frame is not None else 0

    def loaded(self) -> str:
        """Return the reason why the program's definitions failed; empty if they did not fail."""
        try:
            self._answer()
        except Exception as error:  # noqa: BLE001  of any type, by its name
            return f"{type(error).__name__}: {error}"
        return ""

    def named(self, name: str) -> Any:
        """Return the value of a name or an expression in the program."""
        return self.ask("name", name)

    def ask(self, action: str, /, *args: Any, **kwargs: Any) -> Any:
        """Return the program's answer, or raise its exception."""
        with self._lock:
            if self.ended:
                raise self.blame(RuntimeError(self.ended))
            send(self._connection, self.write((action, args, tuple(kwargs.items()))))
            raised = self.raised
            try:
                return self._answer()
            except TypeError:
                if action == "len":  # Python asks for it before it iterates
                    self.raised = raised
                raise

    def _answer(self) -> Any:
        while True:
            try:
                text = receive(self._connection)
                (kind, *rest), message = self.read(text) if text is not None else ((None,), {})
                for number in message.get("released", []):
                    if number in self.shared:
                        self.drop(number)
                if text := message.get("printed"):
                    sys.stdout.write(str(text))
                if type(kind) is str and kind == "callback":
                    number, args, pairs = rest
                    function, kwargs = self._functions[number], dict(pairs)
                elif type(kind) is not str or kind not in ("returned", "raised"):
                    self.ended = "the program sent no reply to a call" if message else "the program ended"
            except (ValueError, OSError, TypeError, LookupError) as error:
                self.ended = f"the program's reply cannot be read: {error}"
            if self.ended:
                raise self.blame(RuntimeError(self.ended))
            if kind != "callback":
                return self.result(kind, rest[0] if rest else None)
            self._called(function, args, kwargs)

    def result(self, kind: Any, value: Any) -> Any:
        """Return the result of a call, or raise its exception."""
        if kind == "returned":
            return value
        self.raised += 1
        made = type(value)
        if not issubclass(made, Exception) or issubclass(made, NEVER_CAUGHT):
            name = made.__name__ if issubclass(made, BaseException) else "nothing"
            if name in self.words:
                self.refuse(f"the program raises {name}, which cannot be raised here")
            value = RuntimeError(f"{name}: {value}" if issubclass(made, BaseException) else name)
        raise value if any(value is one for one in self._errors) else self.blame(value)

    def _called(self, function: Callable[..., Any], args: Any, kwargs: Any) -> None:
        """Call a function of the tests for the program."""
        self.depth += 1
        try:
            reply = self.write(("returned", function(*args, **kwargs)))
        except Exception as error:  # noqa: BLE001  the program may catch it
            reply = self.write(("raised", error))
        finally:
            self.depth -= 1
        send(self._connection, reply)

    def new_number(self, value: Any) -> int:
        """Register a container of the tests, and return its number. Its changes are sent from now on."""
        self._next += 1
        self.share(self._next, value)
        return self._next

    def error(self, value: BaseException) -> Any:
        """Return the name and text of an exception in the tests; of an assertion, only its name."""
        if not any(value is one for one in self._errors):
            self._errors.append(value)
        kinds = type(value).__mro__
        known = next(one for one in kinds if self._is_shared(one) or "_posttrain_place" in vars(one))
        args = tuple(one for one in value.args if type(one) in PLAIN) if not isinstance(value, AssertionError) else ()
        number = next(index for index, one in enumerate(self._errors) if one is value)
        return ["error", self.encode(known), self.encode(args), number]

    def other(self, value: Any) -> Any:
        """Return a reference to a value that stays here, or the plain value that it extends."""
        if is_object(value):
            if value._posttrain_ahead.values:
                raise self.refuse("an iterator of the program that was read ahead can only be read further")
            return ["object", value._posttrain_place]
        if isinstance(value, type):
            if "_posttrain_place" in vars(value):
                return ["object", vars(value)["_posttrain_place"]]
            if library_class(value.__module__, value.__qualname__) is value:
                return None
        elif callable(value) and type(value).__module__ in ("builtins", "functools", "operator"):
            self._functions[id(value)] = value
            told = [getattr(value, name, None) for name in ("__name__", "__doc__")]
            return ["function", id(value), str(told[0] or "function"), told[1], _parameters(value)]
        elif isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
            return ["iterator", self.other(value.__next__)]
        elif not vars(type(value)).keys() - EMPTY:
            for base in BASES:
                if isinstance(value, base):
                    return self.encode(base(value))
        kind = type(value).__name__
        article = "an" if kind[0] in "aeiouAEIOU" else "a"
        fix = "Send plain values, functions, or objects of the setup or the program"
        raise self.refuse(f"{article} {kind} cannot be sent to the program. {fix}")

    def referred(self, node: list[Any], containers: dict[int, Any]) -> Any:
        """Return a reference to an object of the program, or an exception."""
        match node:
            case ["object", int(place), str(kind), str(base), bool(callable_)]:
                made = ProgramFunction if callable_ else ProgramObject
                return self.objects.setdefault(place, made(self, place, kind, base))
            case ["error class", int(place), str(name), list(bases), attributes]:
                if place not in self.objects:
                    made_of = [base for base in (self._decode(one, containers) for one in bases) if _is_error(base)]
                    self.objects[place] = self._mirror(place, name, made_of, self._decode(attributes, containers))
                return self.objects[place]
            case ["error", kind, args, str(text), attributes, cause]:
                error = _error(
                    self._decode(kind, containers),
                    self._decode(args, containers),
                    text,
                    self._decode(attributes, containers),
                )
                error.__cause__ = self._decode(cause, containers)
                return error
            case ["own", int(number)]:
                return self._functions[number]
            case ["thrown", int(number)]:
                return self._errors[number]
            case ["module", str(name)] if name in sys.stdlib_module_names:
                return importlib.import_module(name)
        raise ValueError(f"{node!r:.100}")

    def _mirror(self, place: int, name: str, bases: list[type], constants: tuple[tuple[str, Any], ...]) -> type:
        """Return a class for an exception class of the program's: its constants, and none of its methods."""
        bases = bases if all(issubclass(base, Exception) for base in bases) and bases else [Exception]
        if not any(issubclass(base, _Mirror) for base in bases):
            bases = [_Mirror, *(base for base in bases if base is not Exception)]
        check_attributes(name for name, value in constants if value is not NotImplemented)
        names: dict[str, Any] = {
            name: _Unasked(self, name) if value is NotImplemented else value for name, value in constants
        }
        return type(
            name,
            tuple(bases),
            {**names, "_posttrain_place": place, "_posttrain_remote": self, "__module__": "solution"},
        )

    def is_kind(self, value: Any, kinds: Any) -> bool:
        """Return isinstance(value, kinds) for values that may belong to the program."""
        if type(kinds) in (tuple, UnionType):
            return any(self.is_kind(value, one) for one in getattr(kinds, "__args__", kinds))
        if not is_object(value):
            return isinstance(value, kinds)
        if any(kinds is one for one in self.comparing):
            raise self.refuse(
                f"the program is not asked for isinstance of {kinds.__name__}, a class of the setup with its own __eq__"
            )
        return self._is_shared(kinds) and bool(self.ask("isinstance", value, kinds))

    def is_subclass(self, value: Any, kinds: Any) -> bool:
        """Return issubclass(value, kinds) for classes that may belong to the program."""
        if type(kinds) is tuple:
            return any(self.is_subclass(value, one) for one in kinds)
        theirs = any(type(one) is ProgramFunction for one in (value, kinds))
        return bool(self.ask("issubclass", value, kinds)) if theirs else issubclass(value, kinds)

    def kind_of(self, value: Any, *more: Any) -> Any:
        """Return type(value) for a value that may belong to the program."""
        theirs = not more and is_object(value)
        return self.ask("type", value) if theirs else type(value, *more)

    def _is_shared(self, kind: Any) -> bool:
        """Tell whether both ends have a class."""
        if not issubclass(type(kind), type):
            return is_object(kind)
        known = library_class(kind.__module__, kind.__qualname__) is kind
        return known or kind in TYPES.values() or kind in self.classes.values()


def _parameters(value: Any) -> list[str] | None:
    """Return the parameters of a function of the tests, if each is required and has no star."""
    code = value.__code__ if type(value) is FunctionType else None
    if code is None or value.__defaults__ or code.co_kwonlyargcount or code.co_flags & STARS:
        return None
    return list(code.co_varnames[: code.co_argcount])


class _Mirror(Exception):  # noqa: N818  its name is never seen
    """An exception class of the program's, for `except` in the tests."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        """Return what the program makes, for tests that call the class."""
        is_mirror = "_posttrain_place" in vars(cls)
        return (
            vars(cls)["_posttrain_remote"].ask("call", cls, *args, **kwargs)
            if is_mirror
            else super().__new__(cls, *args)
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, because `_error` has set everything."""

    def __str__(self) -> str:
        text = vars(self).get("_posttrain_text")
        return text if isinstance(text, str) else super().__str__()


class _Unasked:
    """A method of an exception class of the program's."""

    def __init__(self, remote: Remote, name: str) -> None:
        self._remote, self._name = remote, name

    def __get__(self, value: object, kind: type) -> Any:
        why = f"the program is not asked for {self._name} of its exception. Compare args, str() or an attribute"
        raise self._remote.refuse(why)


def _is_error(kind: Any) -> bool:
    return issubclass(type(kind), type) and issubclass(kind, BaseException)


def _error(kind: Any, args: Any, text: str, attributes: Any) -> BaseException:
    if not _is_error(kind) or type(args) is not tuple:
        raise ValueError("this is not an exception")
    error: BaseException = kind(*args) if kind.__module__ == "builtins" else _made(kind, args)
    error.args = args
    check_attributes(name for name, _ in attributes)
    vars(error).update(attributes)
    vars(error)["_posttrain_text"] = text
    return error


def _made(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    """Return an exception without its `__init__`, whose arguments may be others."""
    maker = next(one for one in kind.__mro__ if "__new__" in vars(one) and one is not _Mirror)
    return maker.__new__(kind, *args)
