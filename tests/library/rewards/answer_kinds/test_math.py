"""Scores by any equal form of the answer."""

from __future__ import annotations

from typing import Any

from posttrain.rewards.answer_kinds.math import KINDS
from posttrain.rewards.correct import CorrectOptions
from tests.library.models.tiny import rollout_of

KIND = KINDS["math"]


def value(text: str, answer: str, **options: Any) -> tuple[float, str, str]:
    found = KIND.score(rollout_of(text, answer), CorrectOptions(answer="math", **options))
    return found.value, found.status, found.answer


def test_score() -> None:
    assert value(r"So it is $\boxed{\frac{1}{2}}$", "0.5") == (1.0, "ok", r"\frac{1}{2}")
    assert value(r"So it is $\boxed{2}$", "0.5") == (0.0, "ok", "2")
    assert value("I get > 0.5", r"\boxed{1/2}", after=">") == (1.0, "ok", "0.5")
    assert value("No idea", "0.5")[1] == "unparseable"


def test_why_unreadable() -> None:
    assert KIND.why_unreadable("1/2", CorrectOptions(answer="math")) is None
    assert KIND.why_unreadable(r"\int x dx", CorrectOptions(answer="math"))
    assert KIND.why_unreadable(r"\boxed{3", CorrectOptions(answer="math")) == "a box without an end"
