"""The code that runs inside the sandbox: a program with input, a program that answers calls, and tests that call it.

A program and its tests run in separate processes. The tests call over a socket and get plain values back (`values`).
"""

from __future__ import annotations

import ast
import atexit
import builtins
import gc
import json
import socket
import struct
import symtable
import sys
import threading
import traceback
import types
from collections.abc import Callable
from typing import Any, Final

from posttrain.sandbox.values import NotPlainError, dumps, loads

LARGEST_MESSAGE: Final = 4 * 2**20
SHOWN: Final = 300
"""The most characters of an error in a reason."""


def run_program(source: str) -> int:
    """Run a program like `python program.py`. Return its exit status."""
    names = _namespace("__main__")
    try:
        exec(_compiled(source, "<program>"), names)
        status = 0
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001  whatever a program may raise
        traceback.print_exc()
        status = 1
    threading._shutdown()  # type: ignore[attr-defined]  # threads may still write
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.__stdout__):  # a program may have closed or replaced it
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    names.clear()
    gc.collect()  # files that it has not closed are written to the end
    return status & 0xFF


def answer_calls(given: dict[str, Any], connection: socket.socket) -> None:
    """Run a program's definitions, then the calls that its tests request, until they hang up."""
    names = _namespace("solution")
    try:
        exec(_compiled(given["setup"], "<setup>"), names)
        names.pop(given["entry_point"], None)  # a setup may hold the head of the function that is asked for
        exec(_compiled(given["code"], "<program>"), names)
        reply: Any = ["returned", None]
    except BaseException as error:  # noqa: BLE001
        reply = ["raised", type(error).__name__, str(error)[:SHOWN]]
    _send(connection, dumps(reply))
    while (request := _receive(connection)) is not None:
        name, args, kwargs = loads(request)
        try:
            sent = dumps(["returned", eval(name, names)(*args, **kwargs)])  # noqa: S307  isolated by now
        except BaseException as error:  # noqa: BLE001
            sent = dumps(["raised", type(error).__name__, str(error)[:SHOWN]])
        _send(connection, sent)


class Remote:
    """The functions of a program in another process."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.ended = ""
        """Why it answers no more."""
        self.fault = ""
        """What the tests asked for that cannot be sent."""
        self.raised: BaseException | None = None
        """The last exception that came from the program."""

    def loaded(self) -> str:
        """Return why the program's definitions failed; empty if they did not."""
        try:
            self._answer()
        except Exception as error:  # noqa: BLE001  of any type, by its name
            return _shown(error)
        return ""

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function that calls the program's function."""

        def call(*args: Any, **kwargs: Any) -> Any:
            if self.ended:
                raise RuntimeError(self.ended)
            try:
                request = dumps([name, list(args), kwargs])
            except NotPlainError as error:
                self.fault = f"the tests call {name} with what cannot be sent: {error}"
                raise
            _send(self._connection, request)
            return self._answer()

        call.__name__ = name
        return call

    def _answer(self) -> Any:
        try:
            reply = _receive(self._connection)
            match loads(reply) if reply is not None else None:
                case ["returned", value]:
                    return value
                case ["raised", str(kind), str(message)]:
                    self.raised = _exception(kind, message)
                case None:
                    self.ended = "the program ended"
                case _:
                    self.ended = "the program sent no reply to a call"
        except (ValueError, OSError) as error:
            self.ended = f"the program's reply cannot be read: {error}"
        raise RuntimeError(self.ended) if self.ended else self.raised or RuntimeError("the program raised nothing")


class Tests(ast.NodeTransformer):
    """Tests as code that counts its assertions: `assert f(1) == 2` etc., `check(candidate)`, or `test_*`."""

    def __init__(self, remote: Remote, share: bool) -> None:  # noqa: FBT001
        self.remote, self.share = remote, share
        self.passed = self.failed = self.asserts = 0
        self.cut, self.reason = False, ""

    def run(self, given: dict[str, Any]) -> None:
        """Run the tests of a program. The counts are the result."""
        tree = ast.parse(given["tests"])
        self._lines = given["tests"].splitlines()
        names = _namespace("tests")
        entry = given["entry_point"]
        try:
            exec(_compiled(given["setup"], "<setup>"), names)
            wanted = [entry] if entry else [name for name in free_names(given["tests"]) if name not in names]
            names |= {name: self.remote.function(name) for name in wanted}
            names |= {"candidate": self.remote.function(entry)} if entry else {}
            sys.modules["solution"] = _Solution("solution", self.remote)
            names |= {"__passed__": self._pass, "__failed__": self._fail, "__raised__": self._raised}
            exec(_compiled(ast.fix_missing_locations(self.visit(tree)), "<tests>"), names)
            for function in _functions(tree):
                names[function](*([names["candidate"]] if function == "check" else []))
        except Exception as error:  # noqa: BLE001  a test may raise anything
            self.cut = True
            if self.share or not self.failed:
                self._fail_with(error, 0)

    def verdict(self) -> dict[str, Any]:
        """Return the reply for the parent."""
        fault = self.remote.fault
        if not fault and not self.passed + self.failed and not self.remote.ended:
            if not self.asserts:
                fault = "the tests assert nothing"
            elif self.remote.raised is not None:  # as they expected: they have caught it
                self.passed = 1
            else:
                self.failed, self.reason = 1, "no assertion of the tests ran"
        if self.remote.ended and not self.failed:
            self.failed, self.reason = 1, self.remote.ended
        count = max(self.passed + self.failed, self.asserts if self.cut else 0)
        return {"passed": self.passed, "failed": self.failed, "count": count, "reason": self.reason, "fault": fault}

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        """Rewrite `assert x`: if x is true, count it; otherwise, or if x raises, count it as failed."""
        self.asserts += 1
        template = (
            "try:\n if 0: __passed__()\n else: __failed__(0)\nexcept Exception as __error__: __raised__(__error__, 0)"
        )
        found = ast.parse(template).body[0]
        assert isinstance(found, ast.Try) and isinstance(found.body[0], ast.If)
        found.body[0].test = node.test
        for part in ast.walk(ast.Module([*found.body[0].orelse, *found.handlers[0].body], [])):
            if isinstance(part, ast.Constant):
                part.value = node.lineno
        return ast.copy_location(found, node)

    def _pass(self) -> None:
        self.passed += 1

    def _fail(self, line: int) -> None:
        raise AssertionError(self._line(line))

    def _raised(self, error: Exception, line: int) -> None:
        self._fail_with(error, line)
        if not self.share:
            raise error

    def _fail_with(self, error: Exception, line: int) -> None:
        """Count a failure. Errors without the program's involvement are the tests' own."""
        self.failed += 1
        failed = isinstance(error, AssertionError) and str(error) == self._line(line)
        self.reason = self.reason or (self._line(line) if failed else f"{self._line(line)} {_shown(error)}".strip())
        if isinstance(error, NameError | ImportError) and error is not self.remote.raised and _is_of_tests(error):
            self.remote.fault = f"the tests fail by themselves: {_shown(error)}"

    def _line(self, line: int) -> str:
        return f"line {line} of the tests: {self._lines[line - 1].strip()[:SHOWN]}" if line else ""


def _is_of_tests(error: BaseException) -> bool:
    """Return whether the tests' own text raised the error, not program text that they evaluate."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or frames[-1].filename in ("<tests>", "<setup>") or frames[-1].filename.startswith("<frozen")


class _Solution(types.ModuleType):
    """The program as a module, for tests with `from solution import f`."""

    def __init__(self, name: str, remote: Remote) -> None:
        super().__init__(name)
        self._remote = remote

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._remote.function(name)


def run_tests(given: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
    """Return the tests' verdict on the program at the other end of the connection."""
    remote = Remote(connection)
    tests = Tests(remote, given["share"])
    if why := remote.loaded():
        count = sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(given["tests"])))
        return {"passed": 0, "failed": 1, "count": max(count, 1), "reason": why, "fault": ""}
    tests.run(given)
    return tests.verdict()


def free_names(tests: str) -> list[str]:
    """Return the names that tests use and neither define nor import, which the program must define."""
    tables, used, defined = [symtable.symtable(tests, "<tests>", "exec")], set(), set(dir(builtins))
    defined |= {symbol.get_name() for symbol in tables[0].get_symbols() if symbol.is_assigned() or symbol.is_imported()}
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {
            symbol.get_name() for symbol in table.get_symbols() if symbol.is_global() or table.get_type() == "module"
        }
    return sorted(used - defined)


def _functions(tree: ast.Module) -> list[str]:
    """Return the test functions that the tests define but do not call themselves."""
    called = {
        statement.value.func.id
        for statement in tree.body
        if isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Call)
        and isinstance(statement.value.func, ast.Name)
    }
    names = [statement.name for statement in tree.body if isinstance(statement, ast.FunctionDef)]
    return [name for name in names if (name == "check" or name.startswith("test")) and name not in called]


def _compiled(source: str | ast.Module, name: str) -> types.CodeType:
    """Return a text as code, without this file's `from __future__`."""
    return compile(source, name, "exec", dont_inherit=True)


def _namespace(name: str) -> dict[str, Any]:
    module = types.ModuleType(name)
    module.__dict__.update(exit=sys.exit, quit=sys.exit)  # as Python's own start-up defines them
    sys.modules[name] = module
    return module.__dict__


def _exception(kind: str, message: str) -> Exception:
    """Return the built-in exception with this name. StopIteration would silently end a loop in the tests."""
    found = getattr(builtins, kind, None)
    if (
        isinstance(found, type)
        and issubclass(found, Exception)
        and not issubclass(found, (StopIteration, StopAsyncIteration))
    ):
        try:
            return found(message)
        except TypeError:  # it wants other arguments
            pass
    return RuntimeError(f"{kind}: {message}")


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:SHOWN]


def _send(connection: socket.socket, message: bytes) -> None:
    connection.sendall(struct.pack("<I", len(message)) + message)


def _receive(connection: socket.socket) -> bytes | None:
    """Return the next message; None if the other end hung up."""
    head = _read(connection, 4)
    if head is None:
        return None
    size = struct.unpack("<I", head)[0]
    if size > LARGEST_MESSAGE:
        raise ValueError(f"it has {size:,} bytes, more than {LARGEST_MESSAGE:,}")
    return _read(connection, size)


def _read(connection: socket.socket, size: int) -> bytes | None:
    found = bytearray()
    while len(found) < size:
        part = connection.recv(min(size - len(found), 2**20))
        if not part:
            return None
        found += part
    return bytes(found)


def run(kind: str, source: str, connection: socket.socket | None) -> tuple[int, str]:
    """Run one kind of process. Return its exit status and its report."""
    sys.argv[:] = ["program.py"]
    if kind == "program":
        return run_program(source), ""
    if connection is None:
        raise ValueError(f"a process of the kind {kind} needs a connection")
    if kind == "tests":
        return 0, json.dumps(run_tests(json.loads(source), connection))
    answer_calls(json.loads(source), connection)
    return 0, ""
