"""Each kind of instruction, followed and not, and what no instruction is."""

from __future__ import annotations

import pytest

from posttrain.rewards.instruction_checks import CHECKS, fault, followed, said

CASES = {
    "at_least": ({"count": 3}, "one two three", "one two"),
    "at_most": ({"count": 2}, "it's two", "now it's three"),
    "include": ({"word": "Fox"}, "A fox.", "A foxy."),
    "avoid": ({"word": "fox"}, "A foxy.", "A Fox."),
    "repeat": ({"word": "a", "count": 2}, "A b a", "a b"),
    "lowercase": ({}, "abc 1", "Abc"),
    "uppercase": ({}, "ABC 1", "ABc"),
    "no_commas": ({}, "a b", "a, b"),
    "bullets": ({"count": 2}, "- a\n* b", "- a\n-b"),
    "ends": ({"phrase": "the end"}, "This is The End", "the end?"),
    "begins": ({"phrase": "so"}, "So it is", "It is so"),
    "quotes": ({}, '"a b"', '"a" b"'),
    "title": ({}, "<<a>> b", "<<>> b"),
    "json": ({}, ' {"a": 1} ', "[1]"),
}


def test_every_kind_has_a_case() -> None:
    assert set(CASES) == set(CHECKS)


@pytest.mark.parametrize("kind", CASES)
def test_followed(kind: str) -> None:
    options, right, wrong = CASES[kind]
    instruction = {"kind": kind, **options}
    assert followed(instruction, right) and not followed(instruction, wrong) and not followed(instruction, " ")
    assert fault([instruction]) is None


def test_said() -> None:
    assert said({"kind": "at_most", "count": 20}) == "Use at most 20 words."


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([], "no list `instructions`"),
        ("a", "no list `instructions`"),
        ([{"kind": "nothing"}], "no instruction of a known kind"),
        ([{"kind": "at_most"}], "the wrong options"),
        ([{"kind": "include", "word": "two words"}], "a word that is not a single word"),
        ([{"kind": "ends", "phrase": " a"}], "a phrase that is empty or has spaces around it"),
        ([{"kind": "at_most", "count": 2.5}], "a count that is not an integer"),
    ],
)
def test_fault(given: object, message: str) -> None:
    found = fault(given)
    assert found is not None and message in found


def test_json_that_is_none_is_not_followed() -> None:
    assert not followed({"kind": "json"}, "{")
