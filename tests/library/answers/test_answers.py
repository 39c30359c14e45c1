"""Hostile final answers cost little and are never right."""

from __future__ import annotations

import time
from contextlib import suppress

import pytest

from posttrain.answers.choice import chosen
from posttrain.answers.equal import Pairs, same_answer
from posttrain.answers.extract import final_answer
from posttrain.answers.nodes import Unreadable


def right(gold: str, found: str, pairs: Pairs = "unsure") -> bool:
    try:
        return same_answer(gold, found, pairs)
    except Unreadable:
        return False


BIG = 10_000_000
HOSTILE = {
    "brackets": "(" * 200 + "18" + ")" * 200,
    "fractions": r"\frac{1}{" * 200 + "2" + "}" * 200,
    "powers": "2^" * 200 + "2",
    "a tower": "10^{10^{10}}",
    "factorials": "1000!!!!",
    "an exponent": "e^{10^{9}}",
    "a polynomial": "(x+1)^{5000}",
    "digits": "9" * 1100,
    "roots": r"\sqrt{" * 39 + "2" + "}" * 39,
    "unions": r"\cup".join(rf"(\sqrt{{{n}}},\sqrt{{{n + 1}}})" for n in range(38)),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_answers_cost_little_and_are_never_right(name: str) -> None:
    start = time.process_time()
    for gold in ("18", "x^2+1", r"\sqrt{2}", r"\{1,2\}", "[1,2]"):
        assert not right(gold, HOSTILE[name])
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    "unit",
    (
        "a|(|*|\\|$|\n|answer is |####|\\boxed{|so |if you |~|😀|🎉 |<answer>|<answer><|the answer is a, b|"
        "#### 1 a\n|\\boxed{1}a |"
        f"1 a |답은 |not |= |é|，|the answer is {' ' * 15_000}z"
    ).split("|"),
)
def test_completions_of_ten_megabytes_cost_little(unit: str) -> None:
    text = unit * (BIG // len(unit)) + ("" if unit.isascii() else "x")
    start = time.process_time()
    for form in ("auto", "boxed", "answer_is", "hashes", "whole"):
        with suppress(Unreadable):
            assert not same_answer("18", final_answer(text, form))
    with suppress(Unreadable):
        assert not same_answer("18", final_answer(text, unmarked=True))
    with suppress(Unreadable):
        assert chosen(text, "ABCD", unmarked=True) != "B"
    assert time.process_time() - start < 5
