"""Scores by the letter of a choice."""

from __future__ import annotations

from typing import Any

from posttrain.rewards.answer_kinds.choice import KINDS
from posttrain.rewards.correct import CorrectOptions
from tests.library.models.tiny import rollout_of

KIND = KINDS["choice"]


def value(text: str, answer: str, **options: Any) -> tuple[float, str, str]:
    found = KIND.score(rollout_of(text, answer), CorrectOptions(answer="choice", **options))
    return found.value, found.status, found.answer


def test_score() -> None:
    assert value("The answer is (B).", "B") == (1.0, "ok", "B")
    assert value("The answer is (C).", "B") == (0.0, "ok", "C")
    assert value("The answer is A, C.", "C, A") == (1.0, "ok", "AC")
    assert value("I pick > D", "d", after=">") == (1.0, "ok", "D")
    assert value("No idea", "B")[1] == "unparseable"


def test_why_unreadable() -> None:
    options = CorrectOptions(answer="choice", choices="ABC")
    assert KIND.why_unreadable("b", options) is None
    assert KIND.why_unreadable("D", options) == "none of the choices ABC"
    assert KIND.why_unreadable("", options) == "none of the choices ABC"
