"""Programs as people write them: a right one scores 1, or the tests are an error; a wrong one never scores 1."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import indent

import pytest

from posttrain.sandbox.parent import Limits, Sandbox
from posttrain.sandbox.verdicts import Verdict, run_tests
from tests.library.sandbox.programs import CASES
from tests.library.sandbox.programs.case import Case

LIMITS = Limits(seconds=1)


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox() as found:
        yield found


def passes(found: Verdict) -> bool:
    return not found.fault and found.passed == found.count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_right_program_passes_or_is_an_error_and_a_wrong_one_fails(case: Case, box: Sandbox) -> None:
    assert case.wrong != case.right
    right, wrong = (
        run_tests(box, code, case.tests, LIMITS, case.setup, case.entry) for code in (case.right, case.wrong)
    )
    assert case.error in right.fault and passes(right) == (not case.error), right
    assert not passes(wrong) and (case.error or not wrong.fault), wrong


YES = """
class Yes(BASE):
    x = v = n = property(lambda self: self)
    def __new__(cls, *given): return BASE.__new__(cls)
    def __init__(self, *given): pass
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    __lt__ = __le__ = __gt__ = __ge__ = __contains__ = startswith = endswith = issubset = isdisjoint = __eq__
    def __sub__(self, other): return 0
    __isub__ = __iadd__ = __rsub__ = __mod__ = __xor__ = __rxor__ = __sub__
    def __mul__(self, *given): return self
    __rmul__ = __add__ = __radd__ = __getitem__ = __call__ = __enter__ = __truediv__ = __and__ = __rand__ = __mul__
    def __hash__(self): return hash(3)
    def __exit__(self, *given): return True
    def __iter__(self): yield self
    def __next__(self): return self
"""
FORMS = {
    "an object": f"{YES}\ndef f(x): return Yes()".replace("BASE", "object"),
    "a class that is the function": f"{YES}\nf = Yes".replace("BASE", "object"),
    "a class of this name": f"{YES.replace('Yes', 'f')}".replace("BASE", "object"),
    **{
        f"an object that extends {base}": f"{YES}\ndef f(x): return Yes()".replace("BASE", base)
        for base in ("int", "str", "list", "set")
    },
}
EXPECTED = (
    "assert f(1) == 3",
    "assert 3 == f(1)",
    "assert not f(1) != 3",
    "assert f(1) == [3] or f(1) == '3' or f(1) == {3} or f(1) == {'a': 3} or f(1) == (3,) or f(1) == 3.5",
    "import datetime, decimal, fractions\nassert f(1) == datetime.date(2024, 1, 1) or f(1) == decimal.Decimal('0.3')",
    "import fractions\nassert f(1) == fractions.Fraction(1, 3) or fractions.Fraction(1, 3) == f(1)",
    "assert f(1) in (2, 3)",
    "assert f(1) in {3: 1}",
    "assert 3 in f(1)",
    "assert [f(1), 2] == [3, 2]",
    "assert {f(1)} == {3}",
    "assert {'a': (f(1),)} == {'a': (3,)}",
    "assert 2 < f(1) < 4",
    "assert 4 > f(1) > 2",
    "assert abs(f(1) - 3) < 0.01",
    "assert abs(3 - f(1)) < 0.01",
    "assert f(1) * 2 == 6",
    "assert f(1) % 7 == 3",
    "assert f(1) & 1 == 1",
    "assert f(1)[0] == 3",
    "assert list(f(1)) == [3]",
    "assert sorted(f(1)) == [3]",
    "assert set(f(1)) == {3}",
    "assert {1, 3} <= f(1)",
    "assert f(1).startswith('abc')",
    "assert f(1).issubset({1, 2}) and f(1) > set()",
    "assert f(1).x == 3",
    "assert str(f(1)) == '3'",
    "import math\nassert math.isclose(f(1), 3)",
    "import operator\nassert operator.eq(f(1), 3)",
    "assert f(1)(2) == 3",
    "assert next(f(1)) == 3",
    "assert f(1) is True",
    "with f(1) as x:\n    assert x == 3",
    "for x in f(1):\n    assert x == 3",
    "xs = [3]\nassert [f(x) for x in xs] == xs",
    "assert max(f(1), 2) == 3",
    "x = f(1)\nx -= 3\nassert x == 0 or abs(x) < 0.01",
    "x = f(1)\nx += 3\nassert x == 6",
    "def check(x):\n    assert x - 3 == 0\ncheck(f(1))",
)


@pytest.mark.parametrize("form", FORMS)
def test_an_object_cannot_claim_to_be_what_is_expected(form: str, box: Sandbox) -> None:
    names = [("f", "f"), ("Area", None)]
    for name, entry in names[: 1 + ("extends" not in form)]:
        for tests in EXPECTED:
            code = FORMS[form].replace("f(", f"{name}(").replace("f =", f"{name} =").replace("class f", f"class {name}")
            found = run_tests(box, code, tests.replace("f(1", f"{name}(1"), LIMITS, entry_point=entry)
            assert not passes(found), (tests, found)


SETUP = """
class Near:
    def __init__(self, v, by=1): self.v, self.by = v, by
    def __eq__(self, o): return abs(self.v - getattr(o, 'v', o)) < self.by
"""
HIJACK = """
import gc, sys
calls = sys.modules["posttrain.sandbox.calls"]
calls._defined.__code__ = (lambda value, name: "").__code__
for base in calls.BASES: calls.BASES[base] = lambda value: value
calls.Program.container = lambda self, value: self.other(value)
"""
ATTACKS = {
    "an object of the setup that is near everything": (
        "assert f(1) == 3\nassert f(1) == Near(3)",
        "def f(x): return Near(0, float('inf'))",
        SETUP,
    ),
    "an object of the setup with another class": (
        "assert f(P(1)) == P(3)",
        "def f(p):\n    p.__class__ = type('P', (), {'__eq__': lambda *a: True})\n    return p",
        "class P:\n    def __init__(self, x): self.x = x",
    ),
    "a class that is equal to everything": (
        "import unittest.mock\nassert f() == 3",
        "import unittest.mock\nf = type(unittest.mock.ANY)",
        "",
    ),
    "what the tests find out about an object is false": (
        "assert f(1).startswith('abc') or 3 in f(1) or f(1) == 3",
        HIJACK + FORMS["an object"],
        "",
    ),
    "what the tests find out about a text is false": (
        "assert f(1).startswith('abc') or 'b' in f(1) or f(1) == 'x'",
        HIJACK + FORMS["an object that extends str"],
        "",
    ),
    "a module of its own": (
        "assert math.isclose(f(1), 3)",
        "class math: isclose = lambda *a: True\ndef f(x): pass",
        "",
    ),
    "an empty iterator": (
        "try:\n    pass\nexcept ValueError:\n    pass\nfor x in list(f(1)):\n    assert x == 3",
        "class E:\n    def __iter__(self): return iter(())\ndef f(x): return E()",
        "",
    ),
    "a value of an exception": (
        "try:\n    f(1)\n    assert False\nexcept ValueError as e:\n    assert e.code == 3",
        FORMS["an object"] + "\ndef f(x):\n    e = ValueError()\n    e.code = Yes()\n    raise e",
        "",
    ),
    "an assertion that its context manager hides": (
        "with f() as x:\n    assert x == 3\nassert True",
        FORMS["an object"].replace("f(x)", "f()"),
        "",
    ),
    "an exception with a method among its attributes": (
        "assert f(1).startswith('abc')",
        "def f(x):\n    e = ValueError()\n    e.startswith = lambda text: True\n    return e",
        "",
    ),
    "an exception class with a method": (
        "assert f(1).startswith('abc') or f(1) == 3",
        "class E(Exception):\n    __eq__ = startswith = lambda *a: True\ndef f(x): return E()",
        "",
    ),
    "an exception class whose method is sent": (
        "assert f(1) == 3",
        HIJACK
        + "calls._constant.__code__ = (lambda value: value).__code__\n"
        + "class Name(str):\n    def startswith(self, text): return False\n"
        + "calls.vars = lambda one: {Name(k): v for k, v in one.__dict__.items()}\n"
        + "class E(Exception): __eq__ = lambda *a: True\ndef f(x): return E()",
        "",
    ),
    "an object of the setup with a method among its attributes": (
        "assert f(P(1)).startswith('abc')",
        "def f(p):\n    p.startswith = lambda text: True\n    return p",
        "class P:\n    def __init__(self, x): self.x = x",
    ),
    "a failed assertion in a callback that is caught": (
        "def want(x):\n    assert x == 3\nf(want)\nassert True",
        "def f(want):\n    try: want(2)\n    except BaseException: pass",
        "",
    ),
    "an exception of the tests that ends them": (
        "assert f(1) == 3",
        "import sys\nclass E(SystemExit): pass\ndef f(x): raise E(0)",
        "",
    ),
    "changes of everything that it has got": (
        "xs, want = [1], [2]\nf(xs)\nassert f(xs) == want",
        "kept = []\ndef f(xs):\n    kept.append(xs)\n    for x in kept: x[:] = [9]\n    return xs",
        "",
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_fails(name: str, box: Sandbox) -> None:
    tests, code, setup = ATTACKS[name]
    found = run_tests(box, code, tests, LIMITS, setup, "f" if "math" not in tests else None)
    assert not passes(found), found


def test_a_program_cannot_add_passed_assertions(box: Sandbox) -> None:
    tests = "def each(x):\n    assert x\nf(each)\nassert f(None) == 1"
    found = run_tests(box, "def f(each):\n    for _ in range(50): each and each(1)", tests, LIMITS, share=True)
    assert (found.passed, found.count, found.fault) == (1, 2, "")


def test_the_program_never_gets_what_is_expected(box: Sandbox) -> None:
    spy = (
        "seen = []\nclass Spy:\n    def __init__(self, x): pass\n"
        "    def __getattr__(self, name): return lambda *given: seen.append(given)\n"
        + "".join(
            f"    def __{name}__(self, *given): seen.append(given)\n"
            for name in ("eq", "ne", "lt", "gt", "le", "ge", "sub", "rsub", "contains", "add", "mul", "and", "rand")
        )
        + "f = Spy\ndef look(): return repr(seen)"
    )
    secret = "31337"
    asked = [test for test in EXPECTED if test.count("\n") < 2 and "f(1)[" not in test and "f(1)(2" not in test]
    calls = [test.replace("3", secret).replace("assert", "x =") for test in asked if "\n    assert" not in test]
    for call in calls:
        tests = f"try:\n{indent(call, '    ')}\nexcept Exception:\n    pass\nassert {secret!r} in look()"
        assert run_tests(box, spy, tests, LIMITS).passed == 0, call
    assert run_tests(box, spy, f"f(1).add({secret})\nassert {secret!r} in look()", LIMITS).passed == 1


def test_an_iterator_that_is_asked_ahead(box: Sandbox) -> None:
    code = "def f(n):\n    for i in range(n): yield i\n    raise KeyError('end')\ndef g(it): return next(it)"
    tests = "it = f(1000)\nfound = []\ntry:\n    for i in it: found.append(i)\nexcept KeyError:\n    pass\n"
    tests += "assert found == list(range(1000))\nassert next(it, None) is None"
    assert passes(run_tests(box, code, tests, LIMITS))
    assert passes(run_tests(box, code, "it = f(99)\nassert next(it) == 0 and g(it) == 1 and next(it) == 2", LIMITS))
    late = run_tests(box, code, "it = f(999)\nfor _ in range(99): next(it)\nassert g(it) == 99", LIMITS)
    assert "an iterator of the program that was read ahead can only be read further" in late.fault


REPLIES = """
import json, sys
def write(self, value, **more):
    sent = FIRST if value[1:] == ("value of f",) else self.encode(value[1]) if value[1] is f else THEN
    contents = [[1, "list", None, []]]
    return json.dumps({"value": ["tuple", ["returned", sent]], "contents": contents, "printed": ""}).encode()
def f(*given): return "value of f"
sys.modules["posttrain.sandbox.calls"].Program.write = write
"""
NODES = (
    ["object", 0, "f", "", True],
    ["object", 0, "int", "int", True],
    ["object", 0, "str", "str", False],
    ["error", ["type", "ValueError"], ["tuple", []], "", ["tuple", []], None],
    ["error", ["error class", 0, "E", [], ["tuple", []]], ["tuple", []], "", ["tuple", []], None],
    ["library", "unittest.mock", "_ANY", ["object", 0, "f", "", True]],
    ["type", "types.SimpleNamespace"],
    ["module", "operator"],
    ["NotImplementedType", []],
    ["thrown", 0],
    ["shared", 1],
    ["object", True, [], 3, None],
)


@pytest.mark.parametrize("node", NODES, ids=[str(node[:2]) for node in NODES])
def test_a_program_that_writes_the_replies_itself_fails(node: list[object], box: Sandbox) -> None:
    right = [tests for tests in EXPECTED if "is True" not in tests and "& 1" not in tests]  # True is an answer to these
    for then in (True, "own", node):
        code = REPLIES.replace("FIRST", repr(node)).replace("THEN", repr(then))
        for tests in right[:: 2 if then is True else 7]:
            found = run_tests(box, code, tests, LIMITS, entry_point="f")
            assert not passes(found), (tests, found)
