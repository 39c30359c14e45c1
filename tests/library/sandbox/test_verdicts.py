"""Tests run in a process of their own: what a program does to its own process changes no verdict."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import dedent

import psutil
import pytest

from posttrain.sandbox.parent import Limits, Sandbox, SandboxFailed
from posttrain.sandbox.verdicts import Case, run_cases, run_program, run_tests

MARKER = "SECRET-42"
PATTERN = r"SECRET-\d\d"
TESTS = f'assert f(1) == "{MARKER}"\nassert f(2) == "{MARKER}"'
LIMITS = Limits(seconds=0.5)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox() as found:
        yield found


FORGERIES = {
    "exit status 0": "import sys\nsys.exit(0)",
    "exit status 0 in the call": "import sys\ndef f(x): sys.exit(0)",
    "hard exit": "import os\nos._exit(0)",
    "hard exit in the call": "import os\ndef f(x): os._exit(0)",
    "exit in a hook": "import atexit, os\natexit.register(os._exit, 0)\ndef f(x): raise SystemExit(0)",
    "printed verdicts": """
        print("PASS", "OK")
        def f(x): print('{"passed": 2, "failed": 0, "count": 2, "reason": "", "fault": ""}')
    """,
    "equal to all": """
        class All:
            def __eq__(self, other): return True
            __ne__ = __lt__ = __hash__ = None
        def f(x): return All()
    """,
    "text equal to all": """
        class All(str):
            def __eq__(self, other): return True
            __hash__ = str.__hash__
        def f(x): return All('x')
    """,
    "number equal to all": """
        class All(int):
            def __eq__(self, other): return True
            __hash__ = int.__hash__
        def f(x): return All(1)
    """,
    "list of those equal to all": "class All(list):\n    def __eq__(self, other): return True\ndef f(x): return All()",
    "a class that claims to be another": """
        class C:
            __class__ = str
            def __eq__(self, other): return True
        def f(x): return C()
    """,
    "assertions off": """
        import builtins, unittest
        builtins.AssertionError = type('E', (BaseException,), {})
        unittest.TestCase.assertEqual = lambda *a: None
        def f(x): return 1
    """,
    "built-ins replaced": """
        import builtins
        for name in ('compile', 'exec', 'isinstance', 'any', 'all', 'len'):
            setattr(builtins, name, lambda *a, **k: True)
        def f(x): return 1
    """,
    "trace function": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)\ndef f(x): return 1",
    "harness replaced": """
        import sys
        for name, module in list(sys.modules.items()):
            if "inside" in name or "values" in name:
                module.dumps = lambda value: b'["list", ["returned", true]]'
                module.run_tests = lambda *given: {"passed": 2, "failed": 0, "count": 2, "reason": "", "fault": ""}
                module.Tests = module.Remote = None
        def f(x): return 1
    """,
    "harness replaced by gc": """
        import gc, types
        for one in gc.get_objects():
            if isinstance(one, dict) and one.get("__name__", "").startswith("posttrain") and "_fail" in one:
                one["_fail"] = lambda *given: None
            if isinstance(one, types.FunctionType) and one.__name__ in ("_fail", "_raised", "_fail_with", "verdict"):
                one.__code__ = (lambda self, *given: None).__code__
        def f(x): return 1
    """,
    "tests in the garbage collector's objects": f"""
        import gc, re
        def f(x):
            for one in gc.get_objects():
                for part in gc.get_referents(one):
                    if isinstance(part, (str, bytes)) and (found := re.search({PATTERN!r}, str(part))):
                        return found[0]
    """,
    "tests in the frames": f"""
        import re, sys
        def f(x):
            frame = sys._getframe()
            while frame:
                if found := re.search({PATTERN!r}, repr(frame.f_locals) + repr(frame.f_globals)):
                    return found[0]
                frame = frame.f_back
    """,
    "tests in open files": f"""
        import os, re
        def f(x):
            for number in range(256):
                try:
                    if found := re.search({PATTERN!r}, os.pread(number, 10**6, 0).decode("latin")): return found[0]
                except OSError: pass
    """,
    "tests in the memory": f"""
        import ctypes, os, re
        def f(x):
            place, (read, write) = id(object()) >> 12 << 12, os.pipe()
            for at in range(place - 2**24, place + 2**24, 4096):
                if ctypes.CDLL(None).write(write, ctypes.c_void_p(at), 4096) == 4096:  # else it cannot be read
                    if found := re.search({PATTERN!r}, os.read(read, 4096).decode("latin")):
                        return found[0]
    """,
    "tests in files": f"""
        import os, re
        def f(x):
            for folder, _, names in os.walk("/tmp"):
                for name in names:
                    if found := re.search({PATTERN!r}, open(os.path.join(folder, name)).read()): return found[0]
    """,
    "tests by /proc": "import os\ndef f(x):\n    return open(f'/proc/{os.getppid()}/mem', 'rb').read(1)",
    "messages of its own": """
        import json, os, struct
        verdict = '{"passed": 2, "failed": 0, "count": 2, "reason": "", "fault": ""}'
        for text in ('["list", ["returned", true]]', verdict, "ready\\n"):
            for number in range(3, 64):
                try: os.write(number, struct.pack("<I", len(text)) + text.encode())
                except OSError: pass
        def f(x): return 1
    """,
    "nonsense as a message": """
        import os
        for number in range(3, 64):
            try: os.write(number, bytes(100))
            except OSError: pass
        def f(x): return 1
    """,
    "a message without end": """
        import os
        for number in range(3, 64):
            try: os.write(number, b'\\xff' * 8)
            except OSError: pass
        def f(x): return 1
    """,
    "a nested value": "x = []\nfor _ in range(10**5): x = [x]\ndef f(y): return x",
    "a value that contains itself": "x = []\nx.append(x)\ndef f(y): return x",
    "a large value": "def f(x): return 'x' * 10**7",
    "an endless iterator": "import itertools\ndef f(x): return itertools.count()",
    "sleep in the call": "import time\ndef f(x): time.sleep(3600)",
    "a loop in the call": "def f(x):\n    while True: pass",
    "signal to itself": "import os\ndef f(x): os.kill(os.getpid(), 9)",
    "stopped": "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSTOP)",
    "crash": "import ctypes\ndef f(x): ctypes.string_at(0)",
    "no such function": "g = 1",
    "no program": "this is no Python",
    "not a function": "f = 1",
    "keyboard interrupt": "def f(x): raise KeyboardInterrupt",
    "exceptions without end": "class E(Exception):\n    def __str__(self): raise E\ndef f(x): raise E",
}


@pytest.mark.parametrize("name", FORGERIES)
def test_a_forgery_fails(name: str, box: Sandbox) -> None:
    found = run_tests(box, dedent(FORGERIES[name]), TESTS, LIMITS)
    assert found.passed == 0 and found.fault == "" and found.reason != ""
    assert psutil.Process(box._process.pid).children(recursive=True) == []


@pytest.mark.parametrize("name", ["tests in the garbage collector's objects", "tests in the memory"])
def test_a_search_would_find_what_is_in_its_own_process(name: str, box: Sandbox) -> None:
    code = f"here = '-'.join(['SECRET', str(40 + 2)])\n{dedent(FORGERIES[name])}"
    if "memory" in name:
        code = code.replace("id(object())", "id(here)")
    assert run_tests(box, code, TESTS, LIMITS).passed == 2


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        ("assert all(map(f, [1, 2]))", "def f(x): raise StopIteration"),
        ("for one in map(f, [1, 2]):\n    assert one\nassert True", "def f(x): raise StopIteration"),
        (
            "assert f(1)\ntry: f(2)\nexcept Exception: pass",
            "import os\ndef f(x): return True if x == 1 else os._exit(0)",
        ),
        ("try:\n    assert f(1) == 2\nexcept AssertionError: pass", "def f(x): return 1"),
        ("x = [1]\nassert f(x) == 1 and x == [1]", "def f(x): x.clear()"),
    ],
)
def test_tests_cannot_be_ended_early(tests: str, code: str, box: Sandbox) -> None:
    found = run_tests(box, code, tests, LIMITS)
    assert found.passed == 0 and found.reason


CODE = (
    "def f(x): return x + 1\ndef g(): yield from (1, 2)\nclass Solution:\n"
    "    def h(self, x): return {x: (1, 2.5), 'b': {3}}\n"
    "def bad(x): raise ValueError('no ' + x)"
)
PASSED = {
    "assert f(1) == 2\nassert f(2) == 3 and f(10**5000) == 10**5000 + 1": 2,
    "def check(candidate):\n    for n in range(5):\n        assert candidate(n) == n + 1\n": 5,
    "def check(candidate):\n    assert candidate(1) == 2\ncheck(f)": 1,
    "def test_one():\n    assert f(1) == 2\ndef test_two():\n    assert f(2) == 3": 2,
    "from solution import f as other\nassert other(1) == 2": 1,
    "import math\nassert math.isclose(f(0.1), 1.1)": 1,
    "try:\n    f('a')\n    assert False\nexcept TypeError: assert True": 1,
}
ALL_NAMES = {
    "assert list(g()) == [1, 2]\nassert sum(g()) == 3": 2,
    "assert Solution": 1,
    "try:\n    bad('x')\nexcept ValueError as error:\n    assert str(error) == 'no x'": 1,
}


def test_tests_that_only_expect_an_exception(box: Sandbox) -> None:
    tests = "try:\n    f('a')\n    assert False\nexcept TypeError:\n    pass"
    right = run_tests(box, CODE, tests, LIMITS, entry_point="f")
    assert (right.passed, right.count, right.fault) == (1, 1, "")
    for code in ("def f(x): return x", "def f(x): raise KeyError"):
        wrong = run_tests(box, code, tests, LIMITS, entry_point="f")
        assert (wrong.passed, wrong.fault) == (0, "") and wrong.count


def test_a_program_that_avoids_every_assertion_fails(box: Sandbox) -> None:
    tests = "for x in f(3):\n    assert x > 0"
    found = run_tests(box, "def f(x): return []", tests, LIMITS, entry_point="f")
    assert (found.passed, found.count, found.fault) == (0, 1, "")
    assert found.reason == "no assertion of the tests ran"


@pytest.mark.parametrize("tests", [*PASSED, *ALL_NAMES])
def test_right_programs_pass(tests: str, box: Sandbox) -> None:
    entry = "f" if tests in PASSED else None
    found = run_tests(box, CODE, tests, LIMITS, entry_point=entry)
    assert (found.passed, found.count, found.reason, found.fault) == ({**PASSED, **ALL_NAMES}[tests],) * 2 + ("", "")


def test_an_entry_point_may_be_an_expression(box: Sandbox) -> None:
    tests = "def check(candidate):\n    assert candidate(7) == {7: (1, 2.5), 'b': {3}}"
    assert run_tests(box, CODE, tests, LIMITS, entry_point="Solution().h").passed == 1


FAULTS = {
    "x = f(1)": "the tests assert nothing",
    "assert f(object()) == 2": "line 1 of the tests: an object cannot be sent to the program",
    "assert other(1) == 2": "the tests fail by themselves: NameError: name 'other' is not defined",
    "import numpy\nassert f(1) == 2": "the tests fail by themselves: ModuleNotFoundError: No module named 'numpy'",
}


@pytest.mark.parametrize("tests", FAULTS)
def test_faults_of_the_tests_are_no_verdict(tests: str, box: Sandbox) -> None:
    assert FAULTS[tests] in run_tests(box, CODE, tests, LIMITS, entry_point="f").fault


def test_tests_that_are_no_python_are_no_verdict(box: Sandbox) -> None:
    with pytest.raises(SandboxFailed, match="SyntaxError"):
        run_tests(box, CODE, "assert 1 + ", LIMITS)


def test_a_program_that_raises_a_name_error_is_wrong(box: Sandbox) -> None:
    found = run_tests(box, "def f(x): return unknown", "assert f(1) == 2", LIMITS, entry_point="f")
    assert (found.passed, found.fault) == (0, "") and "NameError" in found.reason


@pytest.mark.parametrize("text", ["unknown + 1", "__import__('nothing')", "1 +"])
def test_a_returned_text_that_tests_evaluate_is_the_programs_fault(text: str, box: Sandbox) -> None:
    found = run_tests(box, f"def f(x): return {text!r}", "assert eval(f(1)) == 2", LIMITS, entry_point="f")
    assert (found.passed, found.fault) == (0, "") and found.reason


def test_the_share_of_assertions(box: Sandbox) -> None:
    tests = "assert f(1) == 2\nassert f(2) == 0\nassert f('a') == 1\nassert f(3) == 4"
    shares = {(CODE, tests): (2, 4), (CODE, "assert f(1) == 2\nf('a')\nassert 1"): (1, 2), ("no Python", tests): (0, 4)}
    for (code, some), expected in shares.items():
        found = run_tests(box, code, some, LIMITS, share=True)
        assert (found.passed, found.count) == expected
    assert run_tests(box, CODE, tests, LIMITS).passed == 0


def test_a_setup_runs_before_the_program_and_before_the_tests(box: Sandbox) -> None:
    setup = "import math\ndef double(x): return 2 * x\ndef f(x):\n    pass"
    tests = "assert f(3) == double(3) == math.floor(6.5)"
    assert run_tests(box, "def f(x): return double(x)", tests, LIMITS, setup, "f").passed == 1
    found = run_tests(box, "g = 1", "assert f(3) is None", LIMITS, setup, "f")  # the setup's own f is no answer
    assert found.passed == 0 and "NameError" in found.reason


def test_inputs_and_outputs(box: Sandbox) -> None:
    cases = [Case("1\n2\n", "3\n"), Case("5 \n6", "11"), Case("0\n0\n", " 0\n\n")]
    right = "print(int(input()) + int(input()))"
    assert run_cases(box, right, cases, LIMITS).passed == 2  # " 0" is not "0"
    assert run_cases(box, right, cases[:2], LIMITS).reason == ""
    wrong = run_cases(box, "print(3)", cases, LIMITS, share=True)
    assert (wrong.passed, wrong.count) == (1, 3) and wrong.reason == "case 2: it printed '3\\n'"
    for code, why in (
        ("print(3); raise SystemExit(1)", "it ended with status 1"),
        ("print(3); 1 / 0", "ZeroDivisionError: division by zero"),
        ("import os; os.write(1, b'3'); os._exit(0)", ""),
        ("if __name__ == '__main__': print(3)", ""),
        ("import threading; threading.Thread(target=print, args=(3,)).start()", ""),
        ("import atexit; atexit.register(print, 3)", ""),
        ("print(3", "SyntaxError"),
        ("import sys; sys.exit('no')", "it ended with status 1"),
    ):
        assert why in run_cases(box, code, cases[:1], LIMITS).reason
        assert (why == "") == (run_cases(box, code, cases[:1], LIMITS).passed == 1)


def test_the_same_program_gives_the_same_verdict(box: Sandbox) -> None:
    code = "print(list({'a', 'b', 'c', 'd', 'e', 'f'}))"
    assert len({run_program(box, code, "", LIMITS)[0] for _ in range(5)}) == 1
