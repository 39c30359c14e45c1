"""Ids are the same whichever way they are made, and pinned so that they cannot drift."""

from __future__ import annotations

import hashlib
import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from posttrain.data.columns import CONTENT, TURNS, Kind, content_id, content_ids, from_rows, with_ids
from posttrain.errors import TableError
from tests.pipeline.tables.samples import row_of, table_of

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
CONVERSATION = st.lists(st.fixed_dictionaries({"role": TEXT, "content": TEXT}), max_size=3)


@pytest.mark.slow
@given(st.lists(st.tuples(TEXT, CONVERSATION, st.booleans(), st.lists(st.integers(-(2**62), 2**62))), min_size=1))
def test_vectorised_ids_are_sha256_of_json(rows: list[tuple[str, list[dict[str, str]], bool, list[int]]]) -> None:
    schema = {"b": pl.String(), "a": TURNS, "c": pl.Boolean(), "d": pl.List(pl.Int64())}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    for made, (b, a, c, d) in zip(content_ids(frame, ["b", "a", "c", "d"]), rows, strict=True):
        text = json.dumps({"b": b, "a": a, "c": c, "d": d}, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        assert made == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_one_row_and_the_whole_table_agree(kind: Kind) -> None:
    frame = table_of(kind)
    assert frame["id"].to_list() == [content_id(row_of(kind, n), kind) for n in range(4)]
    assert frame["id"].n_unique() == 4


def test_ids_are_pinned() -> None:
    assert content_id({"text": "a"}, "corpus") == hashlib.sha256(b'{"text":"a"}').hexdigest()[:16]
    row = {"prompt": [{"role": "user", "content": 'é"'}], "answer": "1"}
    expected = hashlib.sha256('{"answer":"1","prompt":[{"content":"é\\"","role":"user"}]}'.encode()).hexdigest()[:16]
    assert content_id(row, "prompts") == expected


def test_only_content_counts(kind: Kind) -> None:
    frame = table_of(kind)
    other = next((name for name in frame.columns if name not in ("id", *CONTENT[kind])), None)
    assert other is not None
    changed = frame.with_columns(pl.lit(None, dtype=frame.schema[other]).alias(other))
    assert with_ids(changed, kind)["id"].equals(frame["id"])


def test_with_ids_orders_and_names_what_is_missing() -> None:
    frame = table_of("prompts")
    assert with_ids(frame.select(reversed(frame.columns)), "prompts").equals(frame)
    with pytest.raises(TableError, match="a 'prompts' table needs split, answer; it has id, problem, prompt"):
        with_ids(frame.drop("split", "answer"), "prompts")


def test_from_rows_refuses_other_types_and_keys() -> None:
    with pytest.raises(TableError, match="the values do not fit the column types"):
        from_rows([{"split": "train", "text": 5}], "corpus")
    with pytest.raises(TableError, match="the values do not fit the column types"):
        from_rows([{**row_of("feedback", 0), "label": 1}], "feedback")
    with pytest.raises(TableError, match=r"a row has the keys split, txt\. Give every row the keys split, text"):
        from_rows([{"split": "train", "txt": "a"}], "corpus")
