"""Plain values as JSON, and what is no value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from posttrain.sandbox.values import NotPlainError, dumps, loads

VALUES: list[Any] = [
    None, True, "a", 0.5, 12, -(10**5000), {"a": [1, (2, 3)]}, {1: "b"}, b"\x00\xff", 1 + 2j, [1], (1,), {1},
    frozenset([2]),
    range(1, 9, 2),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=[str(nth) for nth in range(len(VALUES))])
def test_values_come_back_with_their_type(value: Any) -> None:
    found = loads(dumps(value))
    assert found == value and type(found) is type(value)


def test_iterators_are_used_up() -> None:
    assert list(loads(dumps(iter([1, 2])))) == [1, 2] and list(loads(dumps({"a": 1}.keys()))) == ["a"]


def test_what_is_no_value() -> None:
    with pytest.raises(NotPlainError, match="a object is not plain data"):
        dumps(object())
    with pytest.raises(NotPlainError, match="more than 1,000,000 values"):
        dumps(iter(range(1_000_001)))
    for text in (["list", 3], ["other", []], {"a": 1}, ["int", "z"]):
        with pytest.raises(ValueError, match=r"this is not a value|invalid literal"):
            loads(json.dumps(text).encode())
