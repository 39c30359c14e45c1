"""Which rows and lines hold a text."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from posttrain.pipeline.lineage.query import Query
from posttrain.pipeline.lineage.search import (
    NotSearchedError,
    in_bytes,
    in_file,
    in_files,
    rows_of,
    table_rows,
    workspace_files,
)

QUERY = Query(texts=("secret text",))
FRAME = pl.DataFrame({"id": ["a", "b", "c"], "turns": [["x"], ["my secret text"], ["y"]]})


def test_lines_of_a_text() -> None:
    assert in_bytes(b"one\nsecret text\nthree\nthe secret text again", QUERY) == [2, 4]
    assert in_bytes(b"nothing", QUERY) is None
    assert in_bytes((8).to_bytes(8, "little") + b'{"a": 1}secret text', QUERY) is None, "weights"


def test_rows_of_a_table(tmp_path: Path) -> None:
    FRAME.write_parquet(tmp_path / "t.parquet")
    assert rows_of(FRAME, QUERY) == [1] and rows_of(pl.DataFrame({"n": [1]}), QUERY) == []
    assert in_file(tmp_path / "t.parquet", QUERY) == [2]
    assert table_rows(QUERY, [tmp_path / "t.parquet"]) == [{"id": "b", "turns": ["my secret text"]}]


def test_files(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("secret text")
    (tmp_path / "empty").write_text("")
    (tmp_path / "damaged").write_bytes(b"PAR1 nothing")
    assert in_file(tmp_path / "empty", QUERY) is None
    found, failed = in_files([tmp_path / name for name in ("a", "empty", "damaged", "missing")], QUERY)
    assert found == {str(tmp_path / "a"): [1]}
    assert failed == {
        str(tmp_path / "damaged"): "damaged parquet",
        str(tmp_path / "missing"): "No such file or directory",
    }
    with pytest.raises(NotSearchedError):
        in_bytes(b"PAR1 nothing", QUERY)


def test_workspace_files(tmp_path: Path) -> None:
    for name in ("a/b.txt", ".git/c", "env/pyvenv.cfg", "cache/d", "e"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("x")
    found = [str(file.relative_to(tmp_path)) for file in workspace_files(tmp_path, tmp_path / "cache")]
    assert found == ["e", "a/b.txt"]
