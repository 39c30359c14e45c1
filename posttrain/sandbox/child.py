"""The code that runs inside the sandbox: a program with input, a program that answers calls, and tests that call it.

A program and its tests run in separate processes. The tests ask over a socket, and get plain values (`values`) and
references to objects (`objects`) back.
"""

from __future__ import annotations

import ast
import atexit
import gc
import json
import re
import socket
import sys
import threading
import traceback
import types
from typing import Any, Final

from posttrain.sandbox.calls import Program
from posttrain.sandbox.names import ASKED, Asking, Names, Solution, free_names, words
from posttrain.sandbox.objects import is_object
from posttrain.sandbox.remote import Remote

SHOWN: Final = 300
"""Maximum number of characters of an error in a reason."""
HERE: Final = __file__.rpartition("/")[0]
UNSEEN: Final = {"is_dataclass", "signature", "getsource", "get_type_hints", "gc", "match statement"}
"""Functions that look at an object without asking it."""
UNREACHED: Final = {".stdin", "mock", "unittest.mock", "builtins", ".seed", ".environ", "open", "tempfile", ".chdir"}
"""Functions that change the process or files of the tests, not of the program."""
PRINTED: Final = {"redirect_stdout", ".redirect_stdout", ".stdout", "stdout"}


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
    """Run a program's definitions, then execute the tests' requests until they hang up."""
    names = _namespace("solution")
    program = Program(connection, lambda name: eval(name, names))  # noqa: S307  isolated by now
    try:
        exec(_compiled(given["setup"], "<setup>"), names)
        names.pop(given["entry_point"], None)  # a setup may hold the head of the function that is asked for
        program.learn(names, "solution")
        exec(_compiled(given["code"], "<program>"), names)
        again = {name: names[name] for name in program.classes if isinstance(names.get(name), type)}
        program.classes |= again  # a program may define a class of the setup once more
    except BaseException as error:  # noqa: BLE001
        program.raised(error)
    else:
        program.loaded()
    program.answer()


class Tests(Asking):
    """Tests as code that counts its assertions: `assert f(1) == 2` etc., `check(candidate)`, or `test_*`."""

    def __init__(self, tree: ast.Module, remote: Remote, share: bool) -> None:  # noqa: FBT001
        super().__init__(tree)
        self.tree, self.remote, self.share = tree, remote, share
        self.passed = self.failed = self.asserts = 0
        self.cut, self.reason = False, ""
        self._called: set[int] = set()
        """Lines of assertions that passed in functions which the program has called."""

    def run(self, given: dict[str, Any]) -> None:
        """Run the tests of a program. The counts are the result."""
        tree = self.tree
        self._lines = given["tests"].splitlines()
        self._catches = any(isinstance(node, ast.Try | ast.With) for node in ast.walk(tree))
        self.remote.words = words(tree)
        names = _namespace("tests")
        entry = given["entry_point"]
        try:
            names |= {"__passed__": self._pass, "__failed__": self._fail, "__raised__": self._raised}
            names |= {f"__{name}__": getattr(self.remote, method) for name, method in ASKED.items()}
            names = Names(names, self.remote, entry, free_names(given["tests"]))
            setup = ast.parse(given["setup"])
            exec(_compiled(ast.fix_missing_locations(Asking(setup).visit(setup)), "<setup>"), names)
            self.remote.learn(names, "tests")
            names.pop(entry, None)
            if self.remote.words & PRINTED:
                self.remote.ask("capture")
            sys.modules["solution"] = Solution("solution", self.remote)
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
            elif self.remote.raised and self._catches:  # as they expected: they have caught it
                self.passed = 1
            else:
                self.failed, self.reason = 1, "no assertion of the tests ran"
        if self.remote.ended and not self.failed:
            self.failed, self.reason = 1, self.remote.ended
        count = max(self.passed + self.failed, self.asserts if self.cut else 0)
        return {"passed": self.passed, "failed": self.failed, "count": count, "reason": self.reason, "fault": fault}

    def visit_Assert(self, node: ast.Assert) -> ast.AST:  # noqa: N802
        """Rewrite `assert x`: if x is true, count it; otherwise, or if x raises, count it as failed."""
        self.asserts += 1
        template = (
            "try:\n if 0: __passed__(0)\n else: __failed__(0)\nexcept Exception as __error__: __raised__(__error__, 0)"
        )
        statement = ast.parse(template).body[0]
        assert isinstance(statement, ast.Try) and isinstance(statement.body[0], ast.If)
        for part in ast.walk(
            ast.Module([*statement.body[0].body, *statement.body[0].orelse, *statement.handlers[0].body], [])
        ):
            if isinstance(part, ast.Constant):
                part.value = node.lineno
            ast.copy_location(part, node)
        self.generic_visit(node)
        statement.body[0].test = node.test
        return ast.copy_location(statement, node)

    def _pass(self, line: int) -> None:
        if self.remote.depth and line in self._called:  # the program decides how often
            return
        self._called |= {line} if self.remote.depth else set()
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
        if not self.remote.fault and (why := self._fault(error)):
            at = self.remote.line() or max((line for name, line in _places(error) if name == "<tests>"), default=0)
            self.remote.fault = f"{self._line(line or at)}: {why}" if line or at else why

    def _fault(self, error: Exception) -> str:
        """Return the reason why tests fail without the program, or because its objects are in another process."""
        theirs = self.remote.blames(error)
        if not theirs and isinstance(error, NameError | ImportError) and _is_of_tests(error):
            return f"the tests fail by themselves: {_shown(error)}"
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_locals is not frame.f_globals]
        frames = [frame for frame in frames if not frame.f_code.co_filename.startswith((HERE, "<"))]
        used = any(is_object(one) for frame in frames for one in frame.f_locals.values())
        by_name = isinstance(error, TypeError | AttributeError) and re.search(
            r"\bProgram(Object|Function)\b", str(error)
        )
        if not theirs and (by_name or used):
            return f"an object of the program cannot be used like this: {_shown(error)}"
        if self.remote.objects and (unseen := self.remote.words & UNSEEN):
            return f"{', '.join(sorted(unseen))} cannot see objects of the program"
        if unreached := self.remote.words & UNREACHED:
            names = ", ".join(sorted(name.lstrip(".") for name in unreached))
            return f"the tests use {names}, which does not affect the program in its process"
        return ""

    def _line(self, line: int) -> str:
        return f"line {line} of the tests: {self._lines[line - 1].strip()[:SHOWN]}" if line else ""


def _places(error: BaseException) -> list[tuple[str, int]]:
    return [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]


def _is_of_tests(error: BaseException) -> bool:
    """Tell whether the tests' own text raised the error, not program text that they evaluate."""
    frames = traceback.extract_tb(error.__traceback__)
    return not frames or frames[-1].filename in ("<tests>", "<setup>") or frames[-1].filename.startswith("<frozen")


def run_tests(given: dict[str, Any], connection: socket.socket) -> dict[str, Any]:
    """Return the tests' verdict on the program at the other end of the connection."""
    remote = Remote(connection)
    tests = Tests(ast.parse(given["tests"]), remote, given["share"])
    if why := remote.loaded():
        count = sum(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(given["tests"])))
        return {"passed": 0, "failed": 1, "count": max(count, 1), "reason": why, "fault": ""}
    tests.run(given)
    return tests.verdict()


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


def _shown(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:SHOWN]


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
