"""Rows of files become rows of a table; each knows its file and line, and the wrong ones their reason."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.tables import conversion as module
from posttrain.pipeline.tables.conversion import ConvertedRows, RefusedRow, read_parts
from posttrain.pipeline.tables.readers import Columns, Part
from posttrain.pipeline.tables.source_columns import ColumnOptions


def part(*rows: Any, place: str = "a.jsonl") -> Part:
    """A file with these rows; a text is the reason why a row cannot be read."""

    def read(columns: Columns) -> Iterator[tuple[int, Any]]:
        for number, row in enumerate(rows, 1):
            columns.seen.update(dict.fromkeys(row if isinstance(row, dict) else ()))
            yield number, row

    return Part(place, read)


def converted(*rows: Any, limit: int | None = None, **options: Any) -> ConvertedRows:
    return read_parts({"train": [part(*rows)]}, "chat", ColumnOptions(**options), limit, "data.files.mine")


ONE, TWO = {"prompt": "1+1?", "completion": "2"}, {"prompt": "2+2?", "completion": "4"}


def test_rows_have_their_file_line_and_source() -> None:
    found = converted(ONE, "no JSON", {"prompt": 1}, {**TWO, "split": "test"})
    assert found.frame.select("line", "file", "source", "given").rows() == [
        (1, "a.jsonl", "train", None), (4, "a.jsonl", "train", "test"),
    ]  # fmt: skip
    assert [(row.file, row.line) for row in found.refused] == [("a.jsonl", 2), ("a.jsonl", 3)]
    assert found.refused[0] == RefusedRow("a.jsonl", 2, "no JSON")
    assert (found.limited, found.unwanted) == (False, 0)
    wrong = converted(ONE, {**TWO, "split": 3})
    assert wrong.refused[0].reason.startswith("'split' is 3, not a name")


def test_only_so_many_rows_of_each_split_are_read() -> None:
    found = converted(ONE, TWO, ONE, limit=2)
    assert found.frame.height == 2 and found.limited is True
    assert converted(ONE, TWO, limit=2).limited is False
    some = converted({**ONE, "split": "a"}, {**TWO, "split": "b"}, {**TWO, "split": "a"}, limit=1)
    assert some.frame["given"].to_list() == ["a", "b"]


def test_rows_are_chosen_by_a_column() -> None:
    where = {"lang": ["en"]}
    found = converted({**ONE, "lang": "en"}, {**TWO, "lang": "de"}, where=where)
    assert found.frame.height == 1 and found.unwanted == 1
    with pytest.raises(DataError, match="`where` matches none of the 1 rows"):
        converted({**ONE, "lang": "de"}, where=where)
    missing = converted({**ONE, "lang": "en"}, TWO, "no JSON", where=where)
    assert missing.unwanted + len(missing.refused) == 2 and missing.refused[-1].reason == "no JSON"


def test_columns_are_renamed() -> None:
    found = converted({"question": "1+1?", "answer": "2"}, rename={"question": "prompt", "answer": "completion"})
    assert found.frame.height == 1 and not found.refused
    with pytest.raises(DataError, match=r"'q' cannot be renamed to 'prompt': a\.jsonl already has a column 'prompt'"):
        converted({**ONE, "q": "x"}, rename={"q": "prompt"})
    with pytest.raises(DataError, match=r"a\.jsonl has no column 'none'"):
        converted(ONE, rename={"none": "system"})
    with pytest.raises(DataError, match="rename makes a column 'promt', which no layout of a 'chat' table has"):
        converted({"q": "x"}, rename={"q": "promt"})
    unfilled = converted({**ONE, "b": "x"}, {**TWO, "b": None}, template={"system": "{b}"})
    assert unfilled.frame.height + len(unfilled.refused) == 2


def test_what_is_no_table_is_refused() -> None:
    with pytest.raises(DataError, match=r"a\.jsonl has no rows"):
        converted()
    with pytest.raises(DataError, match="a 'chat' table cannot be made from the columns question, answer"):
        converted({"question": "1+1?", "answer": "2"})


@pytest.mark.parametrize(
    ("kind", "names", "said"),
    [
        ("chat", ["Question", "answer"], "Write rename: {Question: prompt, answer: completion}"),
        ("chat", ["prompt", "response"], "Write rename: {response: completion}"),
        (
            "prompts",
            ["question", "solution"],
            "Write rename: {question: prompt, solution: answer}. If all rows are for",
        ),
        ("prompts", ["question"], "Write rename: {question: prompt}. If all rows are for evaluation"),
        ("chat", ["a", "b"], "Rename yours, e.g. rename: {question: prompt}, or build"),
        ("pairs", ["question", "answer"], "Rename yours, e.g."),
    ],
)
def test_common_names_are_recognised(kind: Any, names: list[str], said: str) -> None:
    shown = module._own_names(kind, names)
    assert shown.startswith(said)
    assert ("Questions with one answer each are a `chat` table" in shown) == (kind == "pairs")
    assert "without the ending" in shown if kind == "prompts" else shown.endswith(("}", "to evaluate on"))


def test_a_row_is_shaped_and_counted() -> None:
    reading = module._Reading("chat", ColumnOptions(), 1, "here")
    assert reading._shaped(ONE, part()) == ONE and reading._shaped("why", part()) == "why"
    assert reading._wanted(ONE) is True and reading._wanted("why") is True
    assert reading._within_limit("train", None) is True and reading._within_limit("train", None) is False
    assert reading._within_limit("train", "a") is True and reading.limited is True
    renaming = module._Reading("chat", ColumnOptions(rename={"q": "prompt"}), None, "here")
    assert renaming._shaped({"q": "x", "completion": "y"}, part()) == {"prompt": "x", "completion": "y"}
    filling = module._Reading("chat", ColumnOptions(template={"prompt": "{q}"}), None, "here")
    assert isinstance(filling._shaped({"completion": "y"}, part()), str), "why it has no prompt"
    choosing = module._Reading("chat", ColumnOptions(where={"lang": ["en"]}), None, "here")
    assert choosing._wanted({"lang": "en"}) is True and choosing._wanted({"lang": "de"}) is False
