"""Which letter a completion chooses."""

from __future__ import annotations

import pytest

from posttrain.answers.choice import chosen, chosen_after, letters
from posttrain.answers.nodes import Unreadable


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("B", "B"), ("(b)", "B"), ("**C**", "C"), ("C, A", "AC"), ("B) Paris", "B"), ("A or B", None),
        ("b and c", None),
        ("Paris", None), ("F", None), ("A, A", None), ("Because", None), ("BD", "BD"),
    ],
)  # fmt: skip
def test_letters(answer: str, found: str | None) -> None:
    assert letters(answer, "ABCD") == found


def test_chosen() -> None:
    assert chosen("So the answer is (B).", "ABCD") == "B"
    assert chosen(r"$\boxed{\text{C}}$", "ABCD") == "C"
    with pytest.raises(Unreadable, match="it chooses none of ABCD"):
        chosen("The answer is Paris.", "ABCD")


def test_chosen_after() -> None:
    assert chosen_after("I pick > d", ">", "ABCD") == "D"
