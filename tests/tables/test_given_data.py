"""Data sets made for TRL drop in, from every kind of file; everything else is refused by name."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.errors import DataError, ParamsError, TableError
from posttrain.params import check
from posttrain.tables.columns import Kind
from posttrain.tables.given import GivenParams, load_feedback, load_pairs, load_table
from posttrain.tables.store import check_disjoint, check_table
from tests.tables.samples import assistant, user

Row = dict[str, Any]
CORPUS = [{"text": f"document {n}"} for n in range(60)]
MESSAGES = [{"messages": user(f"{n}+1?") + assistant(str(n + 1))} for n in range(60)]
COMPLETIONS = [{"prompt": f"{n}+1?", "completion": str(n + 1)} for n in range(60)]
PROMPTS = [{"prompt": f"{n}+1?", "answer": str(n + 1)} for n in range(60)]
PAIRS = [{"prompt": f"{n}+1?", "chosen": str(n + 1), "rejected": "no"} for n in range(60)]
CONVERSED = [
    {"prompt": user(f"{n}+1?"), "chosen": assistant(str(n + 1)), "rejected": assistant("no")} for n in range(60)
]
IMPLICIT = [
    {"chosen": user(f"{n}+1?") + assistant(str(n + 1)), "rejected": user(f"{n}+1?") + assistant("no")}
    for n in range(60)
]
REPEATED = [{"prompt": f"{n}+1?", **row} for n, row in enumerate(IMPLICIT)]
FEEDBACK = [{"prompt": f"{n}+1?", "completion": str(n + 1), "label": n % 2 == 0} for n in range(60)]


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(name: str, rows: list[Row]) -> str:
    """The rows as a file of the kind that the name says."""
    match Path(name).suffix:
        case ".jsonl":
            Path(name).write_text("\n".join(json.dumps(row) for row in rows))
        case ".json":
            Path(name).write_text(json.dumps(rows))
        case ".csv":
            pl.DataFrame(rows).write_csv(name)
        case _:
            pl.DataFrame(rows).write_parquet(name)
    return name


def load(name: str, kind: Kind, **params: Any) -> pl.DataFrame:
    table = load_table(GivenParams(path=name, **params), kind, "here")
    return check_table(table, kind, f"{kind}.parquet")


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
@pytest.mark.parametrize(
    ("kind", "rows", "first"),
    [
        ("corpus", CORPUS, {"text": "document 0"}),
        ("chat", MESSAGES, {"messages": user("0+1?") + assistant("1")}),
        ("chat", COMPLETIONS, {"messages": user("0+1?") + assistant("1")}),
        ("prompts", PROMPTS, {"prompt": user("0+1?"), "answer": "1"}),
        ("prompts", [{"prompt": row["prompt"]} for row in CONVERSED], {"prompt": user("0+1?"), "answer": ""}),
        ("pairs", PAIRS, CONVERSED[0]),
        ("pairs", CONVERSED, CONVERSED[0]),
        ("pairs", IMPLICIT, CONVERSED[0]),
        ("pairs", REPEATED, CONVERSED[0]),
        ("feedback", FEEDBACK, {"prompt": user("0+1?"), "completion": assistant("1"), "label": True}),
        ("feedback", [{**row, "label": int(row["label"])} for row in FEEDBACK], {"label": True}),
    ],
)
def test_layouts(suffix: str, kind: Kind, rows: list[Row], first: Row) -> None:
    table = load(put(f"data.{suffix}", rows), kind, heldout_share=0.2, test_share=0.2)
    expected = 60 if kind in ("prompts", "corpus") else 60 - table_size_lost(rows)
    assert table.height == expected
    row = table.row(0, named=True)
    assert {name: row[name] for name in first} == first


def table_size_lost(rows: list[Row]) -> int:
    """Rows that the prompts table would call test: no other table may have them."""
    asked = [row.get("prompt") or row.get("messages", row.get("chosen"))[:-1] for row in rows]
    as_turns = [{"prompt": turns if isinstance(turns, list) else user(turns)} for turns in asked]
    prompts = load(put("asked.parquet", as_turns), "prompts", heldout_share=0.2, test_share=0.2)
    return prompts.filter(split="test").height


@pytest.mark.parametrize(
    ("kind", "rows"), [("corpus", CORPUS), ("chat", COMPLETIONS), ("prompts", PROMPTS), ("pairs", PAIRS)]
)
def test_csv_gives_what_jsonl_gives(kind: Kind, rows: list[Row]) -> None:
    shares = {"heldout_share": 0.2, "test_share": 0.2}
    assert load(put("a.csv", rows), kind, **shares).equals(load(put("a.jsonl", rows), kind, **shares))


def test_csv_keeps_text_as_text_and_reads_labels() -> None:
    rows = [{"prompt": f"{n}?", "completion": "007", "label": ["true", "False", "1", "0"][n % 4]} for n in range(60)]
    table = load_feedback(GivenParams(path=put("a.csv", rows), heldout_share=0.2))
    check_table(table, "feedback", "f.parquet")
    assert set(table["completion"].list.first().struct.field("content")) == {"007"}
    by_prompt = {row["prompt"][0]["content"]: row["label"] for row in table.iter_rows(named=True)}
    assert all(label == (int(prompt[:-1]) % 2 == 0) for prompt, label in by_prompt.items())


def test_load_pairs() -> None:
    table = load_pairs(GivenParams(path=put("p.jsonl", PAIRS), heldout_share=0.2))
    check_table(table, "pairs", "pairs.parquet")
    assert set(table["split"]) == {"train", "heldout"}


def test_extra_columns_are_left_out_and_problem_is_kept() -> None:
    rows = [{**row, "source": "web", "problem": f"key {n // 2}"} for n, row in enumerate(PROMPTS)]
    table = load(put("p.jsonl", rows), "prompts", heldout_share=0.2, test_share=0.2)
    assert set(table["problem"]) == {f"key {n}" for n in range(30)}


def test_one_data_set_for_two_tables_stays_disjoint() -> None:
    chat, prompts = put("c.jsonl", COMPLETIONS), put("p.jsonl", PROMPTS)
    tables = {"chat": load(chat, "chat", heldout_share=0.2), "prompts": load(prompts, "prompts", heldout_share=0.2)}
    check_disjoint(tables)
    assert set(tables["chat"]["problem"]) <= set(tables["prompts"]["problem"])


def test_folder_with_splits() -> None:
    Path("d").mkdir()
    put("d/train-00000-of-00002.jsonl", PROMPTS[:20])
    put("d/train-00001-of-00002.jsonl", PROMPTS[20:40])
    put("d/validation.jsonl", PROMPTS[40:45])
    put("d/test.jsonl", PROMPTS[45:])
    Path("d/README.md").write_text("not data")
    table = load("d", "prompts")
    assert dict(table["split"].value_counts().rows()) == {"train": 40, "heldout": 5, "test": 15}
    assert load("d", "prompts", limit=3)["split"].to_list() == ["train"] * 3 + ["heldout"] * 3 + ["test"] * 3


def test_test_split_serves_as_heldout_where_there_is_no_other() -> None:
    Path("d").mkdir()
    put("d/train.jsonl", COMPLETIONS[:50])
    put("d/test.jsonl", COMPLETIONS[50:])
    counts = dict(load("d", "chat", test_share=0.01)["split"].value_counts().rows())
    assert counts["heldout"] == 10


def test_named_splits_and_renamed_columns() -> None:
    Path("d").mkdir()
    put("d/train.jsonl", [{"question": "never"}])
    put("d/eval.jsonl", [{"question": f"{n}?"} for n in range(60)])
    params = {"splits": {"train": "eval"}, "rename": {"question": "prompt"}, "heldout_share": 0.2, "test_share": 0.2}
    assert load("d", "prompts", **params).height == 60


def test_hub_layout_by_the_datasets_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    Path("d").mkdir()
    put("d/train.parquet", CONVERSED[:50])
    put("d/test.parquet", CONVERSED[50:])
    table = load_table(GivenParams(hub=str(Path("d").resolve()), test_share=0.01), "pairs", "here")
    check_table(table, "pairs", "pairs.parquet")
    assert dict(table["split"].value_counts().rows())["heldout"] == 10
    with pytest.raises(DataError, match=r"here \(./nowhere\): the data set cannot be loaded"):
        load_table(GivenParams(hub="./nowhere"), "pairs", "here")


BAD: list[tuple[str, Kind, list[Row], str]] = [
    (
        "a.jsonl",
        "chat",
        [{"question": "a", "response": "b"}],
        "the columns question, response are no layout of a 'chat'",
    ),
    ("a.jsonl", "chat", [{"question": "a"}], "Understood are: messages | prompt + completion. Rename columns"),
    (
        "a.jsonl",
        "pairs",
        [{"chosen": "a", "rejected": "b"}],
        "'chosen' holds plain texts and there is no column 'prompt'",
    ),
    ("a.jsonl", "chat", [{"messages": [{"from": "human", "value": "x"}]}], "column 'messages' have the fields from"),
    ("a.jsonl", "chat", [{"messages": 5}], "column 'messages' has the type Int64. Give texts, or lists of turns"),
    (
        "a.jsonl",
        "chat",
        [{"messages": [{**user("a")[0], "tool_calls": None}]}, {"messages": [{**user("a")[0], "tool_calls": "f()"}]}],
        "row 1: a turn of column 'messages' has 'tool_calls', which would be lost",
    ),
    (
        "a.jsonl",
        "pairs",
        [IMPLICIT[0], {"chosen": user("a") + assistant("b"), "rejected": user("z") + assistant("c")}],
        "row 1 (of 1): 'rejected' has turns before its last that are not the prompt's",
    ),
    ("a.jsonl", "feedback", [{"prompt": "a", "completion": "b", "label": 3}], "column 'label' has the type Int64"),
    ("a.csv", "feedback", [{"prompt": "a", "completion": "b", "label": "good"}], "column 'label' has the type String"),
    ("a.jsonl", "corpus", [{"text": 1.5}], "column 'text' has the type Float64. Give texts"),
    ("a.jsonl", "corpus", [{"text": "only one"}], "of 1 rows none is in the split 'heldout'. Give more rows"),
]


@pytest.mark.parametrize(("name", "kind", "rows", "told"), BAD)
def test_refused_layouts(name: str, kind: Kind, rows: list[Row], told: str) -> None:
    with pytest.raises(DataError) as caught:
        load(put(name, rows), kind)
    assert str(caught.value).startswith(f"here ({name}): ")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl cannot be read as jsonl"),
        ("a.json", b"[1, 2", "a.json cannot be read as json"),
        ("a.csv", b"text\n\xff\xfe\xfd\n", "a.csv cannot be read as csv"),
        ("a.parquet", b"PAR1 nothing", "a.parquet cannot be read as parquet"),
        ("a.jsonl", b"", "a.jsonl"),
        ("a.txt", b"text", "'.txt' is no known kind of file. Give a file that ends in .parquet, .jsonl, .json, .csv"),
    ],
)
def test_unreadable_files(name: str, content: bytes, told: str) -> None:
    Path(name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        load(name, "corpus")
    assert told in str(caught.value)


def test_places(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no such file or folder. Mend 'path'"):
        load("nowhere.jsonl", "corpus")
    outside = tmp_path.parent / f"{tmp_path.name}.jsonl"
    put(str(outside), CORPUS)
    for path in (str(outside), f"../{outside.name}"):
        with pytest.raises(DataError, match=r"the path leads out of the workspace. Copy the data into"):
            load(path, "corpus")
        assert load(path, "corpus", outside_workspace=True).height == 60
    Path("empty").mkdir()
    with pytest.raises(DataError, match="the folder has no data files"):
        load("empty", "corpus")


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({"rename": {"txt": "text"}}, "'rename' names the column 'txt', which there is not. Did you mean 'text'?"),
        ({"rename": {"other": "text"}}, "'rename' turns 'other' into 'text', which there is already"),
        ({"splits": {"train": "trian"}}, "there is no split 'trian'. The source has train. Name them, e.g. splits:"),
        ({"splits": {"test": "train"}}, "no split is named train"),
    ],
)
def test_params_that_do_not_fit_the_data(params: Row, told: str) -> None:
    with pytest.raises(DataError) as caught:
        load(put("a.jsonl", [{"text": f"{n}", "other": "x"} for n in range(60)]), "corpus", **params)
    assert told in str(caught.value)


def test_bad_rows_stop_or_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    rows = [*PROMPTS, PROMPTS[3], {"prompt": " ", "answer": "x"}, {"prompt": None, "answer": "y"}]
    name, shares = put("a.jsonl", rows), {"heldout_share": 0.2, "test_share": 0.2}
    with pytest.raises(TableError) as caught:
        load(name, "prompts", **shares)
    assert "must be unique" in str(caught.value)
    assert "row 61, prompt = [{'role': 'user', 'content': ' '}]: each content must not be blank" in str(caught.value)
    assert "row 62, prompt = None: must not be null" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        kept = load(name, "prompts", bad_rows="drop", **shares)
    assert kept.equals(load(put("b.jsonl", PROMPTS), "prompts", **shares))
    assert "here (a.jsonl): left out 3 of 63 rows, 1 of them doubles" in caplog.text


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({}, "name one of 'path' and 'hub'"),
        ({"path": "a", "hub": "b"}, "name one of 'path' and 'hub'"),
        ({"path": "a", "config": "b"}, "'config' and 'revision' belong to 'hub'"),
        ({"path": "a", "splits": {"dev": "x"}}, "given.splits.dev"),
        ({"path": "a", "heldout": 0.1}, "given.heldout: unknown key. Did you mean 'heldout_share'?"),
    ],
)
def test_contradictory_params(section: Row, told: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(GivenParams, section, where="given")
    assert told in str(caught.value)
