"""The row that `where` looks for."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.lineage.query import (
    ENCODINGS,
    LONGEST,
    Query,
    is_row,
    parse_query,
    place_of,
    source_encodings,
    texts_of,
)

LONG_TEXT = "a text of more than twenty characters"


@pytest.fixture(autouse=True)
def _workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.jsonl").write_text(f'{{"prompt": "{LONG_TEXT}", "id": "x"}}\n{{"n": 1}}\nno json\n')


def test_is_row_and_place_of() -> None:
    assert is_row("0123456789abcdef") and not is_row("0123456789abcdeg") and not is_row("0123")
    assert place_of("a.jsonl:2") == (Path("a.jsonl"), 2) and place_of("b.jsonl:2") is None and place_of("text") is None


def test_parse_query() -> None:
    assert parse_query("0123456789abcdef").ids == ("0123456789abcdef",)
    assert parse_query("a.jsonl:1").texts == (LONG_TEXT,)
    assert parse_query("  some text ").texts == ("some text",) and parse_query("x" * 900).texts == ("x" * LONGEST,)
    for wrong, message in [
        ("abc", "the text is too short"),
        ("a.jsonl:2", "the row has no text to search for"),
        ("a.jsonl:9", "no row has this number"),
    ]:
        with pytest.raises(DataError, match=message):
            parse_query(wrong)


def test_texts_of_rows() -> None:
    talk = [{"role": "system", "content": f"{LONG_TEXT}, shared"}, {"role": "user", "content": LONG_TEXT}]
    assert texts_of([{"messages": talk, "id": "an id of more than twenty characters"}]) == (LONG_TEXT,)
    assert texts_of([{"a": "yes", "b": "longer"}, {"c": " "}]) == ("longer",)


def test_patterns() -> None:
    query = Query(ids=("id1",), texts=('a "b" <é>',))
    assert query.json_patterns[:2] == ['"id1"', 'a \\"b\\" <é>']
    utf8 = query.patterns["utf-8"]
    for written in ('a "b" <é>', 'a \\"b\\" <\\u00e9>', 'a ""b"" <é>', "a &quot;b&quot;"):
        assert bool(utf8.search(written.encode())) is (written != "a &quot;b&quot;")
    assert query.patterns["cp1252"].search('a "b" <é>'.encode("cp1252")) and query.decoded == []
    assert Query(texts=("é",), encodings=("utf-7",)).decoded == ["utf-7"]


def test_encodings_of_sources() -> None:
    assert source_encodings() == ENCODINGS
    Path("params.yaml").write_text("data: {files: {m: {path: d, chat: {path: a.csv, encoding: cp437}}}}\n")
    assert source_encodings() == (*ENCODINGS, "cp437")
