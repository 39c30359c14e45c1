"""Plain data of settings."""

from __future__ import annotations

import pytest

from posttrain.errors import ParamsError
from posttrain.settings.plain import check_format, flattened, merge, texts_in


def test_check_format() -> None:
    check_format(1, 2, "a", ParamsError)
    with pytest.raises(ParamsError, match="is not a format version"):
        check_format(True, 2, "a", ParamsError)
    with pytest.raises(ParamsError, match="made by a newer posttrain"):
        check_format(3, 2, "a", ParamsError)


def test_flattened() -> None:
    assert flattened({"a": {"b": 1, "c": "x"}, "d": {}, "e": None}) == {"a.b": "1", "a.c": "x", "d": "{}", "e": "null"}
    assert flattened([1], "p") == {"p": "[1]"}


def test_merge() -> None:
    base = {"a": {"b": 1, "c": 2}, "d": 3}
    assert merge(base, {"a": {"c": 5}, "d": {"e": 1}}) == {"a": {"b": 1, "c": 5}, "d": {"e": 1}}
    assert base["d"] == 3


def test_texts_in() -> None:
    assert list(texts_in({"a": ["b", {"c": 1}], "d": "e"})) == ["a", "b", "c", "d", "e"]
