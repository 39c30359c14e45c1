"""Answers that cannot be read are counted, with examples."""

from __future__ import annotations

import polars as pl

from posttrain.rewards.catalog import term
from posttrain.rewards.unread_answers import unread_in, why_unread


def row(name: str, answer: str, split: str = "train") -> dict[str, object]:
    prompt = [{"role": "user", "content": f"question {name}"}]
    return {"id": name, "prompt": prompt, "answer": answer, "info": "{}", "task": "", "problem": name, "split": split}


FRAME = pl.DataFrame([row("a", "7"), row("b", "red"), row("c", "red"), row("d", "blue", "test")])


def test_unread_in() -> None:
    found = unread_in(FRAME.filter(split="train"), term("correct", 1.0))
    assert (found.rows, found.of, len(found.examples)) == (2, 3, 1)
    assert found.examples[0].startswith("'red' (") and "of prompt b: " in found.examples[0]


def test_why_unread() -> None:
    correct = term("correct", 1.0)
    assert why_unread(row("a", "7"), correct) is None and why_unread(row("b", "red"), correct)
    assert why_unread(row("b", "red"), term("correct", {"answer": "exact"})) is None
