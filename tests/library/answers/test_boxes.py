"""A box in a relation is the answer, unless the relation is negated."""

from __future__ import annotations

import pytest

from tests.library.answers.strangers import verdict


@pytest.mark.parametrize("relation", [r"\equiv", r"\in", "=", r"\approx", ":"])
def test_a_box_in_a_relation_is_the_answer(relation: str) -> None:
    case = {"prompt": "Find N mod 1000.", "gold": "9", "kind": "math", "marked": True, "right": True}
    assert verdict({**case, "completion": rf"So $N {relation} \boxed{{9}}$."}).said


@pytest.mark.parametrize("relation", [r"\not\equiv", r"\not=", r"\ne", r"\neq", "≠", r"\not \in", "!="])
def test_a_box_in_a_negated_relation_is_none(relation: str) -> None:
    case = {"prompt": "Find N mod 1000.", "gold": "9", "kind": "math", "marked": True, "right": False}
    assert not verdict({**case, "completion": rf"So $N {relation} \boxed{{9}}$."}).said
