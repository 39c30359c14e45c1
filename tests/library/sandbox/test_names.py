"""The names that tests use."""

from __future__ import annotations

import ast

import pytest

from posttrain.sandbox.names import Asking, Names, Solution, free_names, words
from posttrain.sandbox.values import NotPlainError
from tests.library.sandbox.ends import connected

CODE = "import math\nLIMIT = 1\ndef f():\n    global LIMIT\n    LIMIT += 1\nclass deque: pass\nclass json: pass\n"


def test_free_names() -> None:
    assert free_names("import math\ndef g(x): return h(x)\nassert f(g(1)) == math.pi and len([]) == 0") == ["f", "h"]


def test_words() -> None:
    assert words(ast.parse("import a.b\nfrom c import d\nx.y = z\nmatch x:\n    case 1: pass")) == {
        *("a.b", "c", "d", "x", ".y", "z", "", "match statement")
    }


def test_code_that_asks() -> None:
    def asking(text: str) -> str:
        tree = ast.parse(text)
        return ast.unparse(ast.fix_missing_locations(Asking(tree).visit(tree)))

    assert asking("isinstance(x, type(y.__class__))") == "__isinstance__(x, __type__(__type__(y)))"
    for text in ("x.__class__ = isinstance", "f(type=3)", "lambda type: type(1)", "def type(x): return 1\ntype(1)"):
        assert asking(text) == ast.unparse(ast.parse(text))


def test_names_of_the_program() -> None:
    with connected(CODE) as (remote, _):
        names = Names({"own": 1}, remote, None, ["LIMIT", "f", "math", "json", "deque", "unknown"])
        assert names["own"] == 1 and names["LIMIT"] == 1
        names["f"]()
        assert names["LIMIT"] == 2 and "LIMIT" not in names and "f" in names
        assert names["math"].__name__ == "math" and names["deque"].__name__ == "deque"
        with pytest.raises(NotPlainError, match="the tests use `json` without importing it"):
            names["json"]
        with pytest.raises(NameError) as found:
            names["unknown"]
        assert remote.blames(found.value)
        with pytest.raises(KeyError):
            names["len"]


def test_names_next_to_an_entry_point() -> None:
    with connected(CODE) as (remote, _):
        names = Names({}, remote, "f", ["LIMIT", "math", "deque", "Unknown"])
        assert names["candidate"] is names["f"] and names["LIMIT"] == 1 and "candidate" in names
        for name in ("math", "Unknown"):
            with pytest.raises(KeyError):
                names[name]


def test_the_program_as_a_module() -> None:
    with connected(CODE) as (remote, _):
        solution = Solution("solution", remote)
        assert solution.LIMIT == 1 and callable(solution.f) and not hasattr(solution, "__path__")
        with pytest.raises(NotPlainError, match="`LIMIT` of the program cannot be set"):
            solution.LIMIT = 2
