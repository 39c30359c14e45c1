"""Values as JSON, and what is no value."""

from __future__ import annotations

import json
from collections import Counter, OrderedDict, defaultdict, deque
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import pytest

from posttrain.sandbox.values import Codec, library_class


class End(Codec):
    """An end that sends plain values alone."""

    def new_number(self, value: Any) -> int:
        number = len(self.shared)
        self.share(number, value)
        return number


VALUES: list[Any] = [
    None, True, "a", 0.5, 12, -(10**5000), {"a": [1, (2, 3)]}, {1: "b"}, b"\x00\xff", 1 + 2j, [1], (1,), {1},
    frozenset([2]), range(1, 9, 2), slice(1, None), ..., bytearray(b"a"), Fraction(1, 3), Decimal("0.10"),
    date(2024, 2, 29), time(1, 2, fold=1), datetime(2024, 1, 1, 5, tzinfo=timezone(timedelta(hours=2))),
    timedelta(days=-1, microseconds=3), deque([1, [2]], maxlen=3), Counter("aab"), OrderedDict(b=1, a=2),
    defaultdict(list, a=[1]), MappingProxyType({"a": 1}), int, [[]] * 2, {"a": 1}.keys(),
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=[str(nth) for nth in range(len(VALUES))])
def test_values_come_back_with_their_type(value: Any) -> None:
    found, _ = End().read(End().write(value))
    assert found == value and type(found) is type(value)


def test_details_of_values() -> None:
    kept, _ = End().read(End().write([deque(maxlen=3), defaultdict(list), time(1, fold=1)]))
    assert kept[0].maxlen == 3 and kept[1]["new"] == [] and kept[2].fold == 1
    row: list[Any] = [1]
    row.append(row)
    (one, other, itself), _ = End().read(End().write((row, row, row[1])))
    assert one is other is itself is one[1] and one[0] == 1


def test_shared_containers_change_in_place() -> None:
    ours, theirs = End(), End()
    xs: list[Any] = [1, {"a": {2}}]
    copy, _ = theirs.read(ours.write(xs))
    for number in (0, 1, 2):  # the other end knows them by the same numbers
        theirs.share(number, (copy, copy[1], copy[1]["a"])[number])
    theirs.keep()
    inner = xs[1]
    copy[1]["a"].add(3)
    copy[0] = 9
    ours.read(theirs.write(None))
    assert xs == [9, {"a": {2, 3}}] and xs[1] is inner
    xs.append(4)
    theirs.read(ours.write(None))
    assert copy == [9, {"a": {2, 3}}, 4]
    assert json.loads(ours.write(None))["contents"] == []


def test_classes_of_the_setup() -> None:
    names: dict[str, Any] = {"__name__": "here"}
    setup = "class Node:\n    def __init__(self, x): self.x, self.next = x, self\nclass Odd:\n"
    exec(compile(setup + "    def __eq__(self, other): return True", "<setup>", "exec"), names)
    ours, theirs = End(), End()
    ours.learn(names, "here")
    theirs.learn(names, "here")
    assert [*ours.classes] == ["Node"] and ours.comparing == [names["Odd"]]
    found, _ = theirs.read(ours.write(names["Node"]((1, 2))))
    assert type(found) is names["Node"] and found.x == (1, 2) and found.next is found
    message = json.loads(ours.write(names["Node"](1)))
    message["contents"][0][3][0] = "__class__"
    with pytest.raises(ValueError, match="an attribute that it cannot have"):
        theirs.read(json.dumps(message).encode())


def test_what_is_no_value() -> None:
    with pytest.raises(NotImplementedError):
        End().write(object())
    for node in (
        ["list", 3],
        ["other", []],
        {"a": 1},
        ["int", "z"],
        ["shared", 5],
        ["Fraction", [1, 0]],
        ["type", "x"],
    ):
        with pytest.raises((ValueError, NotImplementedError)):
            End().read(json.dumps({"value": node, "contents": []}).encode())
    for text in ("[]", "{}", '{"value": 1, "contents": [[1, "object", "X", []]]}', '{"value": 1, "contents": 5}'):
        with pytest.raises(ValueError, match="this is not a value"):
            End().read(text.encode())


def test_classes_of_the_library() -> None:
    assert library_class("collections", "deque") is deque
    assert library_class("collections", "nothing") is None and library_class("polars", "DataFrame") is None
    assert library_class("unittest.mock", "_ANY", imports=True) is not None
    node = ["library", "unittest.mock", "_ANY", None]
    assert End().read(json.dumps({"value": node, "contents": []}).encode())[0] is None
