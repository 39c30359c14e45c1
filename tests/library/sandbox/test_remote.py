"""The tests' end of a connection to a program."""

from __future__ import annotations

import pytest

from posttrain.sandbox.objects import ProgramFunction, ProgramObject
from posttrain.sandbox.values import NotPlainError
from tests.library.sandbox.ends import connected

CODE = """
import io
class Low(ValueError):
    def __init__(self, x):
        super().__init__(f"low: {x}")
        self.x = x
class A:
    def __init__(self, x): self.x = x
def f(x, y=1): return [x, y]
def low(x): raise Low(x)
def stop(): raise StopIteration
def call(g, *args, **kwargs): return g(*args, **kwargs)
def again(g):
    try: g()
    except KeyError: return "caught"
"""


def test_calls_and_objects() -> None:
    with connected(CODE) as (remote, why):
        assert why == "" and remote.named("f")(1, y=(2,)) == [1, (2,)]
        assert type(remote.named("f")) is ProgramFunction and type(remote.named("A")(1)) is ProgramObject
        a = remote.named("A")([1])
        assert a.x == [1] and remote.named("f")(a)[0] is a
        assert remote.is_kind(a, remote.named("A")) and not remote.is_kind(a, (int, str)) and remote.is_kind(3, int)
        assert remote.kind_of(a) is remote.named("A") and remote.kind_of(3) is int
        assert remote.is_subclass(remote.named("Low"), ValueError) and remote.is_subclass(bool, int)
        with pytest.raises(NameError, match="unknown"):
            remote.named("unknown")
        assert remote.raised == 1 and not remote.fault


def test_exceptions() -> None:
    with connected(CODE) as (remote, _):
        with pytest.raises(remote.named("Low"), match="low: 3") as found:
            remote.named("low")(3)
        assert found.value.x == 3 and isinstance(found.value, ValueError) and remote.blames(found.value)
        with pytest.raises(RuntimeError, match="StopIteration"):
            remote.named("stop")()
        assert not remote.fault
        remote.words = {"StopIteration"}
        with pytest.raises(RuntimeError):
            remote.named("stop")()
        assert str(remote.fault) == "the program raises StopIteration, which cannot be raised here"


def test_functions_of_the_tests() -> None:
    kept: list[int] = []
    own = KeyError("own")

    def fails() -> None:
        raise own

    with connected(CODE) as (remote, _):
        call = remote.named("call")
        assert call(lambda x, y: x - y, 5, y=3) == 2 and call(kept.append, 1) is None and kept == [1]
        assert call(lambda: call(len, "ab")) == 2
        assert remote.named("again")(fails) == "caught" and not remote.raised
        with pytest.raises(KeyError) as found:
            call(fails)
        assert found.value is own and not remote.blames(own)


def test_a_program_that_fails_or_ends() -> None:
    with connected("def f(:") as (_, why):
        assert why.startswith("SyntaxError")
    with connected("import sys\ndef f(): sys.exit()") as (remote, _), pytest.raises(RuntimeError, match="SystemExit"):
        remote.named("f")()


def test_what_cannot_be_sent() -> None:
    with connected(CODE) as (remote, _):
        with pytest.raises(NotPlainError, match="an object cannot be sent to the program"):
            remote.named("f")(object())
        assert remote.fault.startswith("an object cannot be sent to the program. Send plain values")
