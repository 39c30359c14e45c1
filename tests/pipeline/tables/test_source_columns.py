"""The source's columns become those of a layout."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.data.turns import RowError
from posttrain.errors import DataError
from posttrain.pipeline.tables.source_columns import ColumnOptions

ROW = {"q": "1+1", "a": ["x", "y"], "n": 3, "up": True}


def options(**given: Any) -> ColumnOptions:
    return ColumnOptions.model_validate(given)


def test_apply() -> None:
    found = options(rename={"q": "prompt"}, template={"completion": "{a} and {n} {{}}"}, info=["n"]).apply(ROW)
    assert found == {
        "prompt": "1+1",
        "a": ["x", "y"],
        "n": 3,
        "up": True,
        "completion": "x\ny and 3 {}",
        "info": {"n": 3},
    }
    labelled = options(rename={"up": "label"}, values={"label": {"true": 1, "false": 0}}).apply(ROW)
    assert labelled["label"] == 1
    assert options(values={"a": {"x": 1, "y": 2}}).apply(ROW)["a"] == [1, 2]
    with pytest.raises(RowError, match="which `values` does not name"):
        options(values={"q": {"a": 1}}).apply(ROW)
    with pytest.raises(RowError, match="'z' is missing or null"):
        options(template={"prompt": "{z}"}).apply(ROW)


def test_keeps() -> None:
    assert options(where={"n": [3.0], "up": ["true"]}).keeps(ROW) and not options(where={"n": [4]}).keeps(ROW)
    assert options(where={"n": {"min": 3}}).keeps(ROW) and not options(where={"n": {"max": 2}}).keeps(ROW)
    assert not options(where={"z": [1]}).keeps(ROW)
    with pytest.raises(RowError, match="'q' is '1\\+1', not a number"):
        options(where={"q": {"min": 3}}).keeps(ROW)


def test_what_is_read_and_said() -> None:
    some = options(rename={"q": "prompt"}, template={"answer": "{n}"}, where={"up": [True]}, info=["a"])
    assert some.read == {"q", "n", "up", "a"} and not some.plain and options(where={"a": [1]}).plain
    assert [some.use_of(name) for name in ("up", "q", "a", "n")] == [
        "for `where`", "to rename", "to put into info", "for a template",
    ]  # fmt: skip
    assert some.suggestion("question", ["questions", "b"]) == "Did you mean 'questions'?"
    assert some.suggestion("q", ["prompt"]) == "Did you mean rename: {prompt: q}? Your column comes first"
    assert some.suggestion("zzz", ["b"]) == "Name one of these"


def test_what_is_refused() -> None:
    options(info=["a"]).check("prompts", ["prompt"], "here")
    with pytest.raises(DataError, match="a 'chat' table has no column info"):
        options(info=["a"]).check("chat", ["prompt"], "here")
    with pytest.raises(DataError, match="a 'chat' table has no column 'x'"):
        options(template={"x": "a"}).check("chat", ["prompt"], "here")
    for wrong in ({"template": {"a": "{b.c}"}}, {"rename": {"a": "b"}, "template": {"b": "x"}}, {"where": {"a": {}}}):
        with pytest.raises(ValueError, match=r"braces|created twice|min, max or both"):
            options(**wrong)
