"""Completions that hold the right value and do not say that it is the answer; and plain ones that do."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.rewards.correct import CorrectOptions, correct
from posttrain.rollout import Score
from tests.library.models.tiny import rollout_of

BOX = r"\boxed{33}"
DOUBTFUL: dict[str, list[str]] = {
    "math": [
        f"-{BOX}",
        f"x = -{BOX}",
        f"2{BOX}",
        rf"2 \cdot {BOX}",
        rf"\frac{{{BOX}}}{{2}}",
        rf"\sqrt{{{BOX}}}",
        f"0.{BOX}",
        f"{BOX}.5",
        f"{BOX}5",
        f"{BOX}_7",
        f"{BOX}x",
        rf"{BOX}\pi",
        rf"{BOX}\text{{ or }}34",
        f"Is it {BOX}? I don't think so.",
        f"~~{BOX}~~",
        f"anything but {BOX}",
        f"{BOX} or maybe {BOX.replace('33', '34')}",
        r"\boxed{33...}",
        "The answer to question 2 is 33.",
        "33 is the answer to another question.",
        "#### 33. Add the numbers",
        "#### 34 or maybe #### 33",
        f"{BOX}!",
        f"{BOX}:7",
        rf"\{{{BOX}, 3\}}",
        f"({BOX}, 3)",
        f"[3, {BOX}]",
        rf"{BOX}\, 3",
        rf"\text{{not }}{BOX}",
        "Not:\n33",
        "It isn't\n33",
        "Definitely not\n\n33",
        "Wrong guess:\n33",
        "I got it wrong with\n33",
        "x ≠\n33",
        "<answer>33</answer>3",
        "<answer>3</answer> not <answer>33</answer>",
        "Not:\n#### 33",
    ],
    "choice": [
        "B is the best distractor",
        "B is correct, so is C",
        "If x > 0 then B is correct",
        "Let's go with B... or C",
        r"\ne \boxed{B}",
        "Answer: B;D",
        "<answer>B</answer>C",
        "<answer>B</answer> is wrong",
        "Incorrect answer: B",
        "Not\nB",
        "Wrong:\nB",
        "Anything but:\nB",
        "Eliminate:\nB",
        "The choice I rejected is B",
        "To be wrong, choose B",
        "It is C.\n\nB",
    ],
    "numeric": [
        "between 10 and 33",
        "from 3 to 33",
        "10-33",
        "10 - 33",
        "3 / 33",
        r"\frac{3}{33}",
        "33 million",
        "It is not 33.",
        "It happened on May 18, 33",
        "33 or 3/4",
        "33?",
    ],
}
PLAIN: dict[str, list[str]] = {
    "math": [
        f"The answer is{BOX}.",
        f"> {BOX}",
        f"<answer>{BOX}</answer>",
        f"- {BOX}",
        rf"$$\begin{{aligned}} x &= 3\cdot 11\\ &= {BOX}\end{{aligned}}$$",
        rf"\therefore\quad {BOX}\text{{ cm}}",
        f"The answer is {BOX}! 🎉\n\nLet me know if you have questions. 😊",
        f"{BOX}\n\n(Note that a common mistake is to forget the last one.)",
        r"\boxed{\text{The answer is } 33}",
        r"\boxed{\begin{aligned} x &= 33 \end{aligned}}",
        "The answer is 33 — a palindrome.",
        "The answer is 33, which is 3 times 11.",
        "#### 33 ####",
        "By adding them, we see that the answer is 33.",
    ],
    "choice": [
        r"$\mathrm{(B)}$ is the right choice.",
        "B - the law of large numbers",
        "__B__",
        "Answer - B",
        "The answer is (B), not (A).",
    ],
    "numeric": ["It is not 30 but 33.", "The sum is 33 eggs.", r"\boxed{33}", "From 3 birds to 33 birds", "- 33"],
}


def value(kind: str, text: str) -> float:
    given: dict[str, Any] = {"answer": kind} | ({"find": "last"} if kind == "numeric" else {})
    (found,) = correct.score_fn(CorrectOptions(**given), None)([rollout_of(text, "B" if kind == "choice" else "33")])  # type: ignore[arg-type]
    assert isinstance(found, Score)
    return found.value


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in DOUBTFUL.items() for text in texts])
def test_a_doubtful_answer_is_not_right(kind: str, text: str) -> None:
    assert value(kind, text) == 0.0


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in PLAIN.items() for text in texts])
def test_a_plain_answer_is_right(kind: str, text: str) -> None:
    assert value(kind, text) == 1.0
