"""`python -m posttrain.rewards test`: its exit codes, its rows and its options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError, ParamsError
from posttrain.rewards.__main__ import _lines, _option, _parser, main, reward_test

ROWS = [
    {"prompt": "1+1", "completion": "#### 2", "answer": "2"},
    {"prompt": "1+2", "completion": "#### 4", "answer": "3"},
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f"{json.dumps(row)}\n" for row in ROWS), encoding="utf-8")
    return file


def test_rows_that_are_scored_end_with_0(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "correct", "--table", str(table)]) == 0
    shown = capsys.readouterr().out
    assert "#### 2" in shown and "#### 4" in shown


def test_a_mistake_ends_with_1(table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["test", "corect", "--table", str(table)]) == 1
    assert "Did you mean 'correct'?" in capsys.readouterr().err
    assert main(["test", "correct", "--table", str(table.with_name("other.jsonl"))]) == 1
    assert "other.jsonl" in capsys.readouterr().err


def test_the_summary_counts_the_rows(table: Path) -> None:
    assert reward_test("correct", table, [], 20).startswith("2 rows: 2 ok; mean 0.500 of 2 scores; slowest row ")
    one = reward_test("correct", table, ["after=####"], 1)
    assert one.startswith("1 row: 1 ok; mean 1.000 of 1 score; slowest row 1 (") and one.endswith(" ms)")
    with pytest.raises(ParamsError, match="-n = 0"):
        reward_test("correct", table, [], 0)


def test_lines_are_objects_or_say_why_not(tmp_path: Path) -> None:
    file = tmp_path / "rows.ndjson"
    file.write_text('{"prompt": "a"}\n\n[1]\n{"prompt"\n', encoding="utf-8")
    first, second, third = _lines(file)
    assert first == (1, {"prompt": "a"}) and second == (3, "it is not a JSON object")
    assert third[0] == 4 and third[1].startswith("it is not valid JSON (")
    with pytest.raises(DataError, match=r"\.csv cannot be read"):
        next(_lines(tmp_path / "rows.csv"))


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("after=####", ("after", "####")),
        ('tags=["think", "answer"]', ("tags", ["think", "answer"])),
        ("most=3", ("most", 3)),
        ("text=a=b", ("text", "a=b")),
        ("empty=", ("empty", "")),
    ],
)
def test_an_option_is_json_or_text(text: str, pair: tuple[str, Any]) -> None:
    assert _option(text) == pair


def test_an_option_needs_its_value() -> None:
    with pytest.raises(ParamsError, match="'after' has no '='"):
        _option("after")


def test_the_words_of_a_command() -> None:
    given = _parser().parse_args(["test", "correct", "--table", "t.jsonl", "--options", "a=1", "b=2", "-n", "3"])
    assert (given.name, given.table, given.options, given.rows) == ("correct", "t.jsonl", ["a=1", "b=2"], 3)
