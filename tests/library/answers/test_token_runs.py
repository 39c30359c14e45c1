"""Runs of tokens: brackets, separators and names."""

from __future__ import annotations

import pytest

from posttrain.answers.nodes import Call, Num, Unreadable
from posttrain.answers.token_runs import (
    Run,
    encloses,
    is_fenced,
    name_of,
    split,
    top,
    whole,
    without_commas,
    without_label,
)
from posttrain.answers.tokens import tokens


def said(run: Run) -> str:
    return " ".join(token.text for token in run)


def test_whole() -> None:
    assert whole(tokens("1+2")) == Call("add", (Num.of(1), Num.of(2)))
    with pytest.raises(Unreadable, match="after an expression"):
        whole(tokens("1)"))


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("x", "x"), ("f(2)", "f(2)"), ("x_1", "x_1"), ("the area", "the area"), ("e", None), ("x+1", None), ("", None),
        ("(x,y)", "(x,y)"), (r"\theta", "theta"), (r"\angle ABC", r"\angleABC"), ("f'(x)", "f'(x)"), ("dy/dx", "dy/dx"),
        ("if x", None), ("x(2)", None),
    ],
)  # fmt: skip
def test_name_of(text: str, name: str | None) -> None:
    assert name_of(tokens(text)) == name


def test_names_that_are_refused() -> None:
    with pytest.raises(Unreadable, match="a name other than the answer"):
        name_of(tokens("half"))
    with pytest.raises(Unreadable, match="unusual order"):
        name_of(tokens("(y,x)"))


def test_top_and_split() -> None:
    run = tokens("1 + (2, 3), 4")
    assert said(top(run)) == "1 + , 4"
    assert [said(part) for part in split(run, ",")] == ["1 + ( 2 , 3 )", "4"]
    assert [said(part) for part in split(tokens("(1, 2] ; 3"), ";")] == ["( 1 , 2 ]", "3"]
    with pytest.raises(Unreadable, match="more than 60 members"):
        split(tokens(" , ".join("1" * 70)), ",")


def test_brackets() -> None:
    assert encloses(tokens("(1+(2))")) and not encloses(tokens("(1)+(2)")) and not encloses(tokens("(1"))
    assert is_fenced(tokens("[1)")) and not is_fenced(tokens("1)")) and not is_fenced([])


def test_labels_and_commas() -> None:
    assert said(without_commas(tokens("1, 2, and 3"))) == "1 , 2 and 3"
    assert said(without_label(tokens("Domain: x > 1"))) == "x > 1"
    assert said(without_label(tokens("the point (1,2)"))) == "( 1 , 2 )"
    assert said(without_label(tokens("the answer is 5"))) == "5"
    assert said(without_label(tokens("wrong: 5"))) == "wrong : 5"
