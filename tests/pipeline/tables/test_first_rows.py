"""Some rows of the user's files, read as the stage would read them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.tables import first_rows as module
from posttrain.pipeline.tables.first_rows import FIRST, FirstRows, drawn_rows, first_rows
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.readers import Columns, file_part


def write(name: str, count: int, wrong: int = 0) -> None:
    rows = [{"prompt": f"{nth}+1?", "completion": str(nth + 1)} for nth in range(count)] + [{"prompt": 3}] * wrong
    Path(name).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def look(path: str, **options: object) -> FirstRows:
    source = FileTable(path=path, **options)
    return first_rows(source, "chat", "data.files.mine", Path(), outside_workspace=False, alone=True)


def test_the_first_rows_of_a_file() -> None:
    write("a.jsonl", 150)
    found = look("a.jsonl")
    assert found.faults == [] and found.cut == ["a.jsonl"]
    assert found.read is not None and found.read.count == FIRST
    assert found.first is not None and found.first["messages"][0]["content"].endswith("+1?")
    write("b.jsonl", 3)
    assert look("b.jsonl").cut == []


def test_wrong_rows_are_faults_unless_they_may_be_left_out() -> None:
    write("a.jsonl", 18, wrong=2)
    (line,) = look("a.jsonl").faults[:1]
    assert "a.jsonl" in line
    assert look("a.jsonl", bad_rows={"drop": 0.5}).faults == []
    assert look("a.jsonl", bad_rows={"drop": 0.05}).faults[0] == (
        "2 rows of the 20 that were read are wrong, more than bad_rows: {drop: 0.05} leaves out"
    )


def test_a_large_json_file_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("a.json").write_text(json.dumps([{"prompt": "1+1?", "completion": "2"}]))
    part = file_part(Path("a.json"))
    assert module._is_large_json(part) is False and look("a.json").cut == []
    monkeypatch.setattr(module, "_LARGE_JSON", 10)
    assert module._is_large_json(part) is True
    assert look("a.json") == FirstRows([], None, ["a.json"])
    write("b.jsonl", 3)
    assert module._is_large_json(file_part(Path("b.jsonl"))) is False
    source = FileTable(path="a.json")
    assert drawn_rows(source, "chat", "x", Path(), outside_workspace=False, count=2).is_empty()


def test_rows_are_drawn_from_the_whole_file() -> None:
    write("a.jsonl", 50)
    found = drawn_rows(FileTable(path="a.jsonl"), "chat", "here", Path(), outside_workspace=False, count=5)
    assert found.height == 5 and found["file"].unique().to_list() == ["a.jsonl"]
    lines = found["line"].to_list()
    assert lines == sorted(lines) and max(lines) > 5
    whole = drawn_rows(FileTable(path="a.jsonl"), "chat", "here", Path(), outside_workspace=False, count=99)
    assert whole["line"].to_list() == list(range(1, 51))


def test_parts() -> None:
    write("a.jsonl", 120)
    cut: list[str] = []
    first = module._first_of(file_part(Path("a.jsonl")), cut)
    columns = Columns(frozenset({"prompt"}))
    assert [number for number, _ in first.read(columns)] == list(range(1, FIRST + 1))
    assert first.place == "a.jsonl" and cut == ["a.jsonl"] and columns.complete is False
    rows = [module._Drawn("train", "a", number, {}) for number in range(1, 4)]
    assert module._drawn(rows, 5) == rows and len(module._drawn(rows, 2)) == 2 and module._drawn([], 2) == []
