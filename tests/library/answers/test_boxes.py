"""A box in a relation is the answer, unless the relation is negated."""

from __future__ import annotations

import pytest

from posttrain.answers.boxes import Mark, _is_unit, _together
from tests.library.answers.strangers import verdict


@pytest.mark.parametrize("relation", [r"\equiv", r"\in", "=", r"\approx", ":"])
def test_a_box_in_a_relation_is_the_answer(relation: str) -> None:
    case = {"prompt": "Find N mod 1000.", "gold": "9", "kind": "math", "marked": True, "right": True}
    assert verdict({**case, "completion": rf"So $N {relation} \boxed{{9}}$."}).said


@pytest.mark.parametrize("relation", [r"\not\equiv", r"\not=", r"\ne", r"\neq", "≠", r"\not \in", "!="])
def test_a_box_in_a_negated_relation_is_none(relation: str) -> None:
    case = {"prompt": "Find N mod 1000.", "gold": "9", "kind": "math", "marked": True, "right": False}
    assert not verdict({**case, "completion": rf"So $N {relation} \boxed{{9}}$."}).said


@pytest.mark.parametrize(
    ("texts", "names", "between", "joined"),
    [
        (["5", " 5 "], ["", ""], ", ", " 5 "),
        (["1", "2"], ["x", "y"], ", ", "x = 1, y = 2"),
        (["1", "2"], ["", ""], ", ", "1, 2"),
        (["1", "2"], ["x", "x"], " or ", "1 or 2"),
    ],
)
def test_boxes_are_joined_into_one_answer(texts: list[str], names: list[str], between: str, joined: str) -> None:
    marks = [Mark(text, 10 * place, 10 * place + 5) for place, text in enumerate(texts)]
    assert _together(list(zip(names, marks, strict=True)), between) == Mark(joined, 0, 15)


@pytest.mark.parametrize(
    ("text", "is_unit"), [("cm", True), ("%", True), ("thousand", True), ("apples", False), ("\\frac{", False)]
)
def test_what_is_a_unit_after_a_box(text: str, is_unit: bool) -> None:
    assert _is_unit(text) is is_unit
