"""What an answer is made of."""

from __future__ import annotations

from fractions import Fraction

from posttrain.answers.nodes import Call, Const, Num, Var, variables, walk, word_set

SUM = Call("add", (Var("x"), Call("mul", (Num.of(2), Var("y")))))


def test_num() -> None:
    assert Num.of(3) == Num(Fraction(3))


def test_word_set() -> None:
    assert word_set("a b\n a") == {"a", "b"}


def test_walk_and_variables() -> None:
    assert list(walk(Const("pi"))) == [Const("pi")]
    assert list(walk(SUM)) == [SUM, SUM.args[1], Var("y"), Num.of(2), Var("x")]
    assert variables(SUM) == {"x", "y"} and variables(Num.of(1)) == frozenset()
