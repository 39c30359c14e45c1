"""Final numbers: found, expected and missing."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from posttrain.rewards.numeric import NumericOptions, expected_number, final_number, missing_number, why_no_number
from posttrain.rollout import Score


@pytest.mark.parametrize(
    ("text", "options", "number"),
    [
        ("It is 7.", {}, "7"),
        ("It is $1,234.50", {}, "1234.50"),
        ("It is -3", {}, "-3"),
        ("It is 3-7", {}, None),
        ("seven", {}, None),
        ("#### 7", {"after": "####"}, "7"),
        ("7", {"after": "####"}, None),
        ("It is 7 apples.", {"find": "last"}, "7"),
        ("It is 7 or 8", {"find": "last"}, None),
        ("none", {"find": "last"}, None),
        ("#### it is 7 apples", {"find": "last", "after": "####"}, "7"),
        ("it is 7 apples", {"find": "last", "after": "####"}, None),
    ],
)
def test_final_number(text: str, options: dict[str, Any], number: str | None) -> None:
    assert final_number(text, NumericOptions(**options)) == (None if number is None else Decimal(number))


def test_expected_number() -> None:
    assert expected_number("1,000", None) == 1000
    assert expected_number("48 / 2 is\n#### 24", "####") == 24
    assert expected_number("about 7", None) is None


@pytest.mark.parametrize(
    ("answer", "after", "reason"),
    [
        ("a #### 7", None, "text; set after: '####' if the number follows it"),
        ("1/2", None, "a fraction"),
        (r"\boxed{2}", None, r"a \boxed{} answer"),
        ("(B)", None, "a choice letter"),
        ("", None, "empty"),
        ("two", "####", "not a number"),
    ],
)
def test_why_no_number(answer: str, after: str | None, reason: str) -> None:
    assert why_no_number(answer, after) == reason


def test_missing_number() -> None:
    assert missing_number(NumericOptions()) == Score(0.0, "unparseable", "it does not end with a number")
    marked = NumericOptions(after="####", find="last")
    assert missing_number(marked) == Score(0.0, "unparseable", "it does not have `#### N`")
