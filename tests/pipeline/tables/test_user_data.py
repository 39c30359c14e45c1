"""Data sets made for TRL drop in, from every kind of file; everything else is refused by name."""

from __future__ import annotations

import gc
import json
import time
from pathlib import Path
from typing import Any

import datasets
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain.data.columns import COLUMNS, Kind, content_id
from posttrain.data.parquet import check_decoded_size
from posttrain.errors import DataError, ParamsError, PosttrainError, TableError
from posttrain.pipeline.lineage.query import parse_query
from posttrain.pipeline.tables.hub_data import dataset_parts
from posttrain.pipeline.tables.options import FileTable, HubTable
from posttrain.pipeline.tables.readers import Columns
from posttrain.pipeline.tables.store import check_disjoint, check_table
from posttrain.settings.params import check
from tests.pipeline.tables.loading import load_table
from tests.pipeline.tables.samples import assistant, user

Row = dict[str, Any]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
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


def load(name: str, kind: Kind, table: Path = Path("rejected/table.parquet"), **params: Any) -> pl.DataFrame:
    loaded = load_table(FileTable(path=name, **params), kind, "here", table=table)
    return check_table(loaded, kind, f"{kind}.parquet")


def test_a_slip_in_rename_is_named() -> None:
    name = put("a.jsonl", [{"question": "a", "answer": "b"}])
    with pytest.raises(DataError, match=r"rename makes a column 'promt', which no layout .* Did you mean 'prompt'"):
        load(name, "prompts", rename={"question": "promt"})


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
def test_every_layout_is_read_from_every_file_type(suffix: str, kind: Kind, rows: list[Row], first: Row) -> None:
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
    table = load(put("a.csv", rows), "feedback", heldout_share=0.2)
    assert set(table["completion"].list.first().struct.field("content")) == {"007"}
    by_prompt = {row["prompt"][0]["content"]: row["label"] for row in table.iter_rows(named=True)}
    assert all(label == (int(prompt[:-1]) % 2 == 0) for prompt, label in by_prompt.items())


def test_extra_columns_are_left_out_and_problem_is_kept() -> None:
    rows = [{**row, "source": "web", "problem": f"key {n // 2}"} for n, row in enumerate(PROMPTS)]
    table = load(put("p.jsonl", rows), "prompts", heldout_share=0.2, test_share=0.2)
    assert set(table["problem"]) == {f"key {n}" for n in range(30)}


@pytest.mark.parametrize("suffix", ["jsonl", "json", "csv", "parquet"])
def test_info_is_kept_as_json(suffix: str) -> None:
    """An object, or the text of one, which is what csv has; no value is an empty object."""
    objects = [{"unit": "€", "n": n} for n in range(3)]
    given = objects if suffix != "csv" else [json.dumps(one) for one in objects]
    rows = [{"prompt": f"{n}?", "answer": "1", "info": info} for n, info in enumerate([*given, None])]
    table = load(put(f"p.{suffix}", rows), "prompts", heldout_share=0.0, test_share=0.0)
    assert table["info"].to_list() == [*(f'{{"n": {n}, "unit": "€"}}' for n in range(3)), "{}"]
    assert table["task"].to_list() == [""] * 4


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
    put("e.jsonl", [*PROMPTS, {"prompt": "z", "answer": "y", "unit": "m"}])
    shares = {"heldout_share": 0.3, "test_share": 0.3}
    assert load("e.jsonl", "prompts", limit=30, info=["unit"], **shares).height == 30


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


def test_hub_tables_are_named_and_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ParamsError, match="must be a commit of 40 hexadecimal digits, because a tag or branch can move"
    ):
        check(HubTable, {"name": "org/name", "revision": "main"}, where="hub")
    for name in ("./folder", "/folder", "a/b/c", "https://x.y/z", ".."):
        with pytest.raises(ParamsError, match=r"not a name on the Hub such as org/name; use data.files for local data"):
            check(HubTable, {"name": name, "revision": COMMIT}, where="hub")
    Path("org/name").mkdir(parents=True)
    with pytest.raises(
        DataError,
        match=r"'org/name' is a local file or folder, not a data set on the Hub. Use data.files for local data",
    ):
        load_table(HubTable(name="org/name", revision=COMMIT), "pairs", "here")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(
        DataError,
        match=r"here: HF_HUB_OFFLINE is set, and commit 0123456 of the data set 'org/missing' is not in the cache. Run",
    ):
        load_table(HubTable(name="org/missing", revision=COMMIT), "pairs", "here")


def test_rows_of_a_loaded_data_set() -> None:
    loaded = datasets.DatasetDict({"train": datasets.Dataset.from_list([{**row, "x": [1]} for row in CONVERSED])})
    parts = dataset_parts(loaded, HubTable(name="org/name", revision=COMMIT), "here")
    columns = Columns(frozenset({"prompt", "chosen", "rejected"}))
    rows = list(parts["train"][0].rows(columns, "here"))
    assert rows == list(enumerate(CONVERSED, 1))
    assert parts["train"][0].place == "org/name train"
    assert list(columns.seen) == ["prompt", "chosen", "rejected", "x"]


BAD_COLUMNS: list[tuple[Kind, Row, str]] = [
    (
        "chat",
        {"question": "a", "response": "b"},
        "a 'chat' table cannot be made from the columns question, response",
    ),
    (
        "chat",
        {"question": "a"},
        "It needs the columns messages, or prompt + completion, or conversations, or instruction + output. Rename",
    ),
    ("corpus", {"te\x1b[2Jxt": "a"}, "from the columns te\\x1b[2Jxt"),
]


@pytest.mark.parametrize(("kind", "row", "expected"), BAD_COLUMNS)
@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet", "csv"])
def test_files_without_a_layout(suffix: str, kind: Kind, row: Row, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        load(put(f"a.{suffix}", [row]), kind)
    assert expected in str(caught.value)


TOOLED = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{"f": 1}]}]
AUDIO = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "audio": {"id": 1}}]
PARTS = [{"type": "text", "text": "a"}, {"type": "image", "url": "x"}]
ODD_ROWS: list[tuple[Kind, list[Row], Row, str]] = [
    ("pairs", CONVERSED, {"prompt": "a", "chosen": "b", "rejected": 5}, "'rejected' is a number; give a text, or a"),
    ("pairs", CONVERSED, {"prompt": "a", "chosen": "b"}, "'rejected' is missing or null; fill it in or drop the row"),
    ("pairs", CONVERSED, {"chosen": "b", "rejected": "c"}, "'chosen' is a plain text and 'prompt' is missing"),
    (
        "pairs",
        IMPLICIT,
        {"chosen": user("a") + assistant("b"), "rejected": user("z") + assistant("c")},
        "the turns of 'rejected' before its last differ from 'prompt'",
    ),
    ("pairs", PAIRS, {**PAIRS[0], "margin": True}, "'margin' is True; give a number"),
    ("chat", MESSAGES, {"messages": 5}, "'messages' is a number; give a text, or a list of turns"),
    ("chat", MESSAGES, {"messages": ["a"]}, "turn 1 of 'messages' is a text; give each turn the texts"),
    ("chat", MESSAGES, {"messages": [{"from": "human", "value": "x"}]}, "the role of turn 1 of 'messages' is missing"),
    ("chat", MESSAGES, {"messages": [{"role": "user"}]}, "the content of turn 1 of 'messages' is missing or null"),
    ("chat", MESSAGES, {"messages": TOOLED}, "turn 2 of 'messages' has the tool call {'f': 1}; give {type: function"),
    ("chat", MESSAGES, {"messages": AUDIO}, "turn 2 of 'messages' has 'audio', which would be lost; put it into"),
    ("chat", MESSAGES, {"messages": [{"role": "user", "content": PARTS}]}, "turn 1 of 'messages' has the part {'type'"),
    ("chat", MESSAGES, {"messages": user("\ud800")}, "turn 1 of 'messages' contains half a character"),
    ("prompts", PROMPTS, {"prompt": "a", "answer": ["4"]}, "'answer' is a list; give a text or a number"),
    ("prompts", PROMPTS, {"prompt": "a", "info": [1]}, "'info' is [1]; give an object, e.g. {\"schema\": ...}, or re"),
    ("prompts", PROMPTS, {"prompt": "a", "info": "[1]"}, "'info' is '[1]'; give an object"),
    ("prompts", PROMPTS, {"prompt": "a", "info": "{"}, "'info' is '{'; give an object"),
    ("prompts", PROMPTS, {"prompt": "a", "info": 7}, "'info' is 7; give an object"),
    ("prompts", PROMPTS, {"prompt": "a", "info": '{"x": NaN}'}, "'info' is '{\"x\": NaN}'; give an object"),
    ("prompts", PROMPTS, {"prompt": "a", "answer": {"x": 4}}, "'answer' is an object; give a text or a number"),
    (
        "prompts",
        PROMPTS,
        {"prompt": "a", "answer": 42.0},
        "'answer' is the number 42.0, which has several spellings",
    ),
    ("feedback", FEEDBACK, {**FEEDBACK[0], "label": 3}, "'label' is 3; give true/false or 1/0"),
    ("feedback", FEEDBACK, {**FEEDBACK[0], "label": "good"}, "'label' is 'good'; give true/false or 1/0"),
    ("corpus", CORPUS, {"text": 1.5}, "'text' is a number; give a text"),
]


@pytest.mark.parametrize(("kind", "good", "odd", "expected"), ODD_ROWS)
def test_an_invalid_row_is_refused_and_changes_no_other(
    kind: Kind, good: list[Row], odd: Row, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name, shares = put("a.jsonl", [*good, odd]), {"heldout_share": 0.2, "test_share": 0.2}
    with pytest.raises(TableError) as caught:
        load(name, kind, **shares)
    assert str(caught.value).startswith(f"here: 1 of 61 rows break the rules of a '{kind}' table:\n  a.jsonl line 61: ")
    assert expected in str(caught.value)
    kept = load(name, kind, bad_rows="drop", **shares)
    assert f"here: 1 row left out (bad_rows: drop), e.g. a.jsonl line 61: {expected}" in capsys.readouterr().err
    assert kept.equals(load(put("b.jsonl", good), kind, **shares))


def test_rows_of_several_layouts_are_converted_by_their_own() -> None:
    rows = [MESSAGES[n] if n % 2 else COMPLETIONS[n] for n in range(60)]
    expected = load(put("a.jsonl", MESSAGES), "chat", heldout_share=0.2)
    assert load(put("b.jsonl", rows), "chat", heldout_share=0.2).equals(expected)
    pairs = [*CONVERSED[:30], *PAIRS[30:]]
    assert load(put("p.jsonl", pairs), "pairs").equals(load(put("q.jsonl", PAIRS), "pairs"))


def test_one_plain_row_among_conversations() -> None:
    rows = [{"messages": user(f"{n}?") + assistant("a")} for n in range(299)]
    with pytest.raises(TableError, match=r"a.jsonl line 300, messages = .*: must end with a turn of the role"):
        load(put("a.jsonl", [*rows, {"messages": "plain"}]), "chat", test_share=0.0)


def test_content_in_parts_is_joined() -> None:
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1?"}]
    rows = [
        {
            "messages": [
                {"role": "user", "content": parts},
                {"role": "assistant", "content": [{"type": "text", "text": str(n)}]},
            ]
        }
        for n in range(60)
    ]
    for name in ("a.jsonl", "a.parquet"):
        table = load(put(name, rows), "chat", test_share=0.0, splits={}, heldout_share=0.0)
        assert table["messages"][0].to_list() == user("1+1?") + assistant("0")


def test_answers_as_json_writes_them(capsys: pytest.CaptureFixture[str]) -> None:
    values = [42, True, 0.5, "007", None, 10**30]
    name = put("a.jsonl", [{"prompt": f"{n}?", "answer": value} for n, value in enumerate(values)])
    table = load(name, "prompts", heldout_share=0.0, test_share=0.0)
    assert table["answer"].to_list() == ["42", "true", "0.5", "007", "", str(10**30)]
    assert "here: 1 row without an answer: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.jsonl", b'{"text": "a"}\n{"text": \n', "a.jsonl line 2: not valid JSON (Expecting value, column"),
        ("a.jsonl", b'{"text": "a"}\n\n{"text": "\xff"}\n', "a.jsonl line 3: not UTF-8 (byte 0xff)"),
        ("a.jsonl", b'{"text": "a", "text": "b"}\n', "a.jsonl line 1: the name 'text' occurs twice"),
        ("a.jsonl", b'{"text": "a", "x": NaN}\n', "a.jsonl line 1: NaN is not a number in JSON"),
        ("a.jsonl", b'{"text": "a", "x": -Infinity}\n', "-Infinity is not a number in JSON"),
        ("a.jsonl", b'["text"]\n', "a.jsonl line 1: not a JSON object; write one JSON object per line"),
        ("a.jsonl", b"[" * 100_000, "a.jsonl line 1: nested too deeply"),
        ("a.jsonl", b"", "a.jsonl has no rows. Give it rows or remove it"),
        ("a.json", b"[1, 2", "a.json cannot be read (not valid JSON (Expecting ',' delimiter, column 6))"),
        ("a.json", b'[{"text": "a"},\n{"text": "\xff"}]', "a.json cannot be read (line 2: not UTF-8 (byte 0xff))"),
        ("a.json", b'{"text": "a"}\n{"text": "b"}', "a file with one object per line must end in .jsonl"),
        ("a.json", b'{"text": "a"}', "a .json file must hold a list of objects"),
        ("a.json", b'[{"text": "a"}, 7]', "a.json row 2: not a JSON object"),
        ("a.csv", b"text\na\n\xff\xfe\xfd\n", "a.csv cannot be read (line 3: not UTF-8 (byte 0xff); set its enc"),
        ("a.csv", b'text,x\n"a\nb",1\nc\n', "a.csv line 4: it has 1 cells, but the header has 2"),
        ("a.csv", b'text\n"a', "a.csv cannot be read (line 2: the quote that opens there is not closed (line 2: unexp"),
        (
            "a.csv",
            b'text,x\na,"b\nc"\n\nd,"e ""f""\ng,h\n',
            "line 5: the quote that opens there is not closed (line 6: unexpected end of data). Close it, or write it",
        ),
        ("a.csv", b'text,x\na,"b""\nc",1\n"d\ne",2,"f\n3,4\n5,"g"\n', "line 5: the quote that opens there is not"),
        ("a.csv", b'text,"x\na,b\n', "a.csv cannot be read (line 1: the quote that opens there is not closed (line 2"),
        ("a.csv", b'text\n\n5" disk\n"b"c\n', "line 4: the quote that opens there is not closed (line 4: ',' expected"),
        ("a.csv", b"text,text\na,b\n", "a.csv cannot be read (the name 'text' occurs twice)"),
        ("a.csv", b"text\n\"[{'role': 'user'}]\"\n", "a.csv line 2: a cell holds a conversation as text"),
        ("a.parquet", b"PAR1 nothing", "a.parquet cannot be read"),
        ("a.arrow", b"ARROW1 nothing", "a.arrow cannot be read"),
        ("a.txt", b"text", "a.txt has an unknown file type. Give a file that ends in .parquet, .jsonl, .json, .csv"),
    ],
)
def test_unreadable_files(name: str, content: bytes, expected: str) -> None:
    Path(name).write_bytes(content)
    with pytest.raises((DataError, TableError)) as caught:
        load(name, "corpus")
    assert expected in str(caught.value)


def test_an_evaluation_of_questions_and_answers_becomes_test_prompts_by_what_the_errors_say() -> None:
    asked = [{"Question": f"{n}+1?", "Answer": str(n + 1)} for n in range(40)]
    put("exam.csv", asked)
    with pytest.raises(DataError) as caught:
        load("exam.csv", "prompts")
    renamed, named = "rename: {Question: prompt, Answer: answer}", "splits: {test: FILE}"
    assert f"Write {renamed}. If all rows are for evaluation, name them: {named}" in str(caught.value)
    rename = {"Question": "prompt", "Answer": "answer"}
    with pytest.raises(
        DataError, match=r"'heldout' is empty.*If all rows are for evaluation, set splits: .test: FILE.,"
    ):
        load("exam.csv", "prompts", rename=rename)
    table = load("exam.csv", "prompts", rename=rename, splits={"test": "exam"})
    assert table["split"].to_list() == ["test"] * 40 and table["answer"].to_list() == [row["Answer"] for row in asked]
    for kind, said in (
        ("chat", "Write rename: {Question: prompt, Answer: completion}"),
        ("pairs", "Questions with one answer each are a `chat` table, or `prompts` to evaluate on"),
    ):
        with pytest.raises(DataError) as caught:
            load("exam.csv", kind)
        assert said in str(caught.value)


GERMAN = [{"prompt": f"Wie groß ist {n}; ungefähr?", "completion": f"{n} €"} for n in range(60)]
EXCEL = [
    (
        ";",
        "cp1252",
        "cp1252",
        "",
        "its header is one column, 'prompt;completion'. If \";\" separates the cells, set separ",
    ),
    (",", "cp1252", "cp1252", "", "a.csv cannot be read (line 2: not UTF-8 (byte 0xdf); set its encoding, e.g. cp1252"),
    (
        "\t",
        None,
        "utf-8",
        "",
        "its header is one column, 'prompt\\tcompletion'. If \"\\t\" separates the cells, set sep",
    ),
    (
        ";",
        None,
        "utf-8-sig",
        "sep=;\n",
        'its header is one column, \'sep=;\'. If ";" separates the cells, set separator: ";"',
    ),
    ("\t", "utf-16", "utf-16", "", "line 1: not UTF-8 (byte 0xff); it is UTF-16: set encoding: utf-16"),
    (",", "utf-16-le", "utf-16-le", "", "it is UTF-16 or not text. If it is UTF-16, set encoding: utf-16-le"),
    ("|", "utf-8", "utf-8", "", 'If "|" separates the cells, set separator: "|"'),
]


@pytest.mark.parametrize(("separator", "encoding", "written", "first", "refused"), EXCEL)
def test_csv_files_of_excel_are_read_and_the_refusal_names_the_option(
    separator: str, encoding: str | None, written: str, first: str, refused: str
) -> None:
    lines = ["prompt,completion".replace(",", separator)]
    lines += [f'"{row["prompt"]}"{separator}"{row["completion"]}"' for row in GERMAN]
    Path("a.csv").write_bytes((first + "\r\n".join(lines) + "\r\n").encode(written))
    with pytest.raises(DataError) as caught:
        load("a.csv", "chat")
    assert refused in str(caught.value)
    options = {"separator": separator, "encoding": encoding}
    expected = load(put("b.jsonl", GERMAN), "chat", heldout_share=0.2)
    assert load("a.csv", "chat", heldout_share=0.2, **options).equals(expected)
    Path("a.csv").write_text(Path("a.csv").read_bytes().decode(written) + "one cell\n", encoding=written)
    with pytest.raises(TableError, match=r"a\.csv line 6[23]: it has 1 cells, but the header has 2; quote cells that"):
        load("a.csv", "chat", heldout_share=0.2, **options)


@pytest.mark.parametrize(
    ("options", "because"),
    [
        ({"separator": ";;"}, "';;' is not one character"),
        ({"separator": '"'}, "is not one character"),
        ({"encoding": "cp9999"}, "'cp9999' is not an encoding"),
        ({"encoding": "hex"}, "'hex' is not an encoding"),
        ({"encoding": "unicode_escape"}, "'unicode_escape' is not an encoding"),
    ],
)
def test_options_of_csv_that_cannot_be(options: Row, because: str) -> None:
    with pytest.raises(ParamsError, match=because):
        check(FileTable, {"path": "a.csv", **options}, where="x")
    with pytest.raises(
        DataError, match=r"separator and encoding apply only to csv files, and b\.jsonl is not a csv file"
    ):
        load(put("b.jsonl", GERMAN), "chat", separator=";")
    Path("a.csv").write_bytes("prompt;completion\na;ü\n".encode("cp1252"))
    with pytest.raises(DataError, match=r"not ascii \(.*byte 0xfc.*\); set another encoding"):
        load("a.csv", "chat", separator=";", encoding="ascii")


def test_options_of_csv_that_do_not_fit_the_file() -> None:
    Path("a.csv").write_bytes("prompt;completion\na;ü\n".encode())
    for encoding in ("cp1252", "latin-1"):
        with pytest.raises(DataError, match=f"line 2 is UTF-8, not {encoding}: remove encoding"):
            load("a.csv", "chat", separator=";", encoding=encoding)
    for separator in ("|", ","):
        with pytest.raises(DataError, match=r"'prompt;completion': separator: .* Write separator: \";\""):
            load("a.csv", "chat", separator=separator)
    Path("a.csv").write_text("prompt,completion\na,b\n")
    with pytest.raises(DataError, match=r"separator: \";\" does not split it\. Write no separator"):
        load("a.csv", "chat", separator=";")


def test_empty_columns_at_the_end_are_none() -> None:
    Path("a.csv").write_text("prompt,completion,,\na,b,,\nc,d\ne,f,, \n")
    assert load("a.csv", "chat", heldout_share=0.0, test_share=0.0).height == 3
    Path("a.csv").write_text("prompt,completion,,\na,b,,x\n")
    with pytest.raises(TableError, match="it has 4 cells, but the header has 2"):
        load("a.csv", "chat")


def test_a_row_of_such_a_file_is_found_by_its_line() -> None:
    rows = [f"Wie groß ist die Stadt {n}?;{n} Meter" for n in range(60)]
    Path("my").mkdir()
    Path("my/a.csv").write_bytes("\n".join(["prompt;completion", *rows]).encode("cp1252"))
    table = "chat: {path: '*.csv', separator: ';', encoding: cp1252}"
    Path("params.yaml").write_text(f"data: {{files: {{mine: {{path: my, {table}}}}}}}")
    assert parse_query("my/a.csv:3").texts == ("Wie groß ist die Stadt 1?",)


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.csv"])
def test_byte_order_mark(name: str) -> None:
    put(name, CORPUS)
    expected = load(name, "corpus")
    Path(name).write_bytes(b"\xef\xbb\xbf" + Path(name).read_bytes())
    assert load(name, "corpus").equals(expected)


def test_relative_absolute_and_missing_paths(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"here: nowhere.jsonl not found. Fix the path"):
        load("nowhere.jsonl", "corpus")
    outside = tmp_path.parent / f"{tmp_path.name}.jsonl"
    put(str(outside), CORPUS)
    for path in (str(outside), f"../{outside.name}"):
        with pytest.raises(
            DataError,
            match=r"is not in the folder \. Use a file or folder in the workspace, or set outside_workspace: true",
        ):
            load(path, "corpus")
        assert load_table(FileTable(path=path), "corpus", "here", outside_workspace=True).height == 60
    Path("empty/.hidden").mkdir(parents=True)
    put("empty/_x.jsonl", CORPUS)
    put("empty/.y.jsonl", CORPUS)
    Path("empty/z.jsonl.crdownload").write_text("half")
    with pytest.raises(DataError, match=r"the folder empty has no data files. Add files that end in .parquet"):
        load("empty", "corpus")


def test_links_that_lead_out_of_the_workspace(tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    outside.mkdir()
    put(str(outside / "train.jsonl"), CORPUS)
    datasets.Dataset.from_list(CORPUS).save_to_disk(str(outside / "saved"))
    Path("inside").mkdir()
    Path("inside/folder").symlink_to(outside)
    Path("d").mkdir()
    Path("d/train.jsonl").symlink_to(outside / "train.jsonl")
    Path("s/train").mkdir(parents=True)
    Path("s/dataset_dict.json").write_text('{"splits": ["train"]}')
    for name in ("state.json", "data-00000-of-00001.arrow"):
        Path("s/train", name).symlink_to(outside / "saved" / name)
    for path in ("inside/folder", "inside/folder/train.jsonl", "d", "d/train.jsonl", "s", "s/train"):
        with pytest.raises(DataError, match="is outside the workspace"):
            load(path, "corpus")
        assert load_table(FileTable(path=path), "corpus", "here", outside_workspace=True).height == 60
    with pytest.raises(DataError, match=r"\.\./d is not in the folder inside"):
        load_table(FileTable(path="../d"), "corpus", "here", Path("inside"))


def test_a_file_name_with_wildcards_is_read_as_a_name() -> None:
    put("x1.jsonl", [{"text": "the wrong file"}])
    for name in ("x[1].jsonl", "x?.csv", "*.parquet", "a\x1b[2J\nb.json"):
        put(name, CORPUS)
        assert "the wrong file" not in set(load(name, "corpus")["text"])
    with pytest.raises(DataError, match=r"no data file matches x\[2\].jsonl"):
        load("x[2].jsonl", "corpus")
    put("a\x1b[2J\nb.json", [{"text": 5}])
    with pytest.raises(TableError) as caught:
        load("a\x1b[2J\nb.json", "corpus")
    assert "a\\x1b[2J\\nb.json row 1: 'text' is a number" in str(caught.value)


@pytest.mark.slow
def test_folders_of_save_to_disk() -> None:
    splits = {"train": PROMPTS[:40], "validation": PROMPTS[40:50], "test": PROMPTS[50:]}
    whole = datasets.DatasetDict({name: datasets.Dataset.from_list(rows) for name, rows in splits.items()})
    whole.save_to_disk("d", num_shards={"train": 2, "validation": 1, "test": 1})
    table = load("d", "prompts")
    assert dict(table["split"].value_counts().rows()) == {"train": 40, "heldout": 10, "test": 10}
    assert load("d/train", "prompts", heldout_share=0.2, test_share=0.2).height == 40
    put("asked.jsonl", PROMPTS[:40])
    expected = load("asked.jsonl", "prompts", heldout_share=0.2, test_share=0.2)
    assert load("d/train", "prompts", heldout_share=0.2, test_share=0.2).equals(expected)
    Path("d/train/state.json").write_text('{"_data_files": [{"filename": "../test/data-00000-of-00001.arrow"}]}')
    with pytest.raises(DataError, match=r"state.json does not list names under '_data_files'"):
        load("d", "prompts")


def test_arrow_files_of_both_formats() -> None:
    arrow = pa.Table.from_pylist(CONVERSED)
    with pa.OSFile("stream.arrow", "wb") as sink, pa.ipc.new_stream(sink, arrow.schema) as writer:
        writer.write_table(arrow, max_chunksize=7)
    with pa.OSFile("file.arrow", "wb") as sink, pa.ipc.new_file(sink, arrow.schema) as writer:
        writer.write_table(arrow, max_chunksize=7)
    expected = load(put("a.jsonl", CONVERSED), "pairs")
    assert load("stream.arrow", "pairs").equals(expected)
    assert load("file.arrow", "pairs").equals(expected)


@pytest.mark.slow
def test_a_split_column_decides_the_split() -> None:
    names = ["train", "Training", "validation", "dev", "test"]
    rows = [{**row, "split": names[n % 5]} for n, row in enumerate(PROMPTS)]
    for suffix in ("jsonl", "parquet", "csv"):
        table = load(put(f"a.{suffix}", rows), "prompts")
        assert dict(table["split"].value_counts().rows()) == {"train": 24, "heldout": 24, "test": 12}
        by_prompt = {row["prompt"][0]["content"]: row["split"] for row in table.iter_rows(named=True)}
        assert by_prompt["4+1?"] == "test"
    own = [{**row, "fold": "ab"[n % 2]} for n, row in enumerate(PROMPTS)]
    params = {"rename": {"fold": "split"}, "splits": {"train": "a", "test": "b"}, "heldout_share": 0.2}
    counts = dict(load(put("b.jsonl", own), "prompts", **params)["split"].value_counts().rows())
    assert counts["test"] == 30
    assert counts["train"] + counts["heldout"] == 30
    assert load("a.jsonl", "prompts", limit=2).height == 10


@pytest.mark.slow
def test_unknown_values_of_a_split_column_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{**row, "split": "train"} for row in PROMPTS]
    for value, expected in (
        ("math", "split = 'math' is not one of train"),
        (None, "split = None"),
        (3, "'split' is 3"),
    ):
        odd = {"prompt": "odd", "answer": "1", "split": value}
        with pytest.raises(TableError) as caught:
            load(put("a.jsonl", [*rows, odd]), "prompts")
        assert f"here: 1 of 61 rows break the rules of a 'prompts' table:\n  a.jsonl line 61: {expected}" in str(
            caught.value
        )
        assert load("a.jsonl", "prompts", bad_rows="drop", rename={}).height == 60
        assert "here: 1 row left out (bad_rows: drop)" in capsys.readouterr().err
    Path("d").mkdir()
    put("d/train.jsonl", rows[:40])
    put("d/test.jsonl", rows[40:])
    with pytest.raises(
        DataError, match="the rows have a column 'split', but the source already has the splits test, tr"
    ):
        load("d", "prompts")
    assert load("d", "prompts", rename={"split": "part"}).filter(split="test").height == 20


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (
            {"rename": {"txt": "text"}},
            "a.jsonl has no column 'txt' to rename; it has text, other. Did you mean 'text'?",
        ),
        (
            {"rename": {"body": "othr"}},
            "it has text, other. Did you mean rename: {other: body}? Your column comes first",
        ),
        ({"rename": {"other": "text"}}, "'other' cannot be renamed to 'text': a.jsonl already has a column 'text'"),
        ({"splits": {"train": "trian"}}, "split 'trian' not found. Its splits are train. Name them, e.g. splits:"),
        ({"splits": {"test": "train"}}, "the source has no split named train"),
    ],
)
def test_params_that_name_missing_splits_or_columns_are_refused(params: Row, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        load(put("a.jsonl", [{"text": f"{n}", "other": "x"} for n in range(60)]), "corpus", **params)
    assert expected in str(caught.value)


@pytest.mark.slow
def test_bad_rows_stop_or_are_dropped(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [*PROMPTS, PROMPTS[3], {"prompt": " ", "answer": "x"}, {"prompt": None, "answer": "y"}]
    name, shares = put("a.jsonl", rows), {"heldout_share": 0.2, "test_share": 0.2}
    with pytest.raises(TableError) as caught:
        load(name, "prompts", table=Path("data/mine/prompts.parquet"), **shares)
    expected = str(caught.value)
    assert "here: 2 of 63 rows break the rules of a 'prompts' table:\n" in expected
    assert "a.jsonl line 62, prompt = [{'role': 'user', 'content': ' '}]: each content must not be blank" in expected
    assert "a.jsonl line 63: 'prompt' is missing or null; fill it in or drop the row" in expected
    assert expected.endswith("set bad_rows: drop; rejected/data/mine/prompts.rejected.parquet lists them all")
    rejected = pl.read_parquet("rejected/data/mine/prompts.rejected.parquet")
    assert rejected.columns == ["file", "line", "reason", *COLUMNS["prompts"]]
    assert sorted(rejected.select("file", "line").rows()) == [("a.jsonl", line) for line in (62, 63)]
    capsys.readouterr()
    kept = load(name, "prompts", bad_rows="drop", **shares)
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "here: 1 row left out: duplicates of an earlier row of the same split"
    assert lines[1].startswith("here: 2 rows left out (bad_rows: drop), e.g. a.jsonl line 63: 'prompt' is missing")
    counts = [kept.filter(split=split).height for split in ("train", "heldout", "test")]
    train, heldout, test = counts
    expected = f"here: 63 rows: {train} train, {heldout} held out (heldout_share 0.2), {test} test (test_share 0.2)"
    assert lines[2].startswith("here: 1 row: 'prompt' is missing") and lines[3].startswith("here: 1 row: prompt each")
    assert lines[4:] == [expected]
    assert kept.equals(load(put("b.jsonl", PROMPTS), "prompts", **shares))


BROKEN = [
    *({"prompt": " ", "answer": "x"} for _ in range(2)), *({"prompt": None, "answer": f"{n}"} for n in range(3)),
    *({"prompt": f"{n}?", "answer": "x", "info": f"not {n}"} for n in range(4)),
]  # fmt: skip


def test_every_reason_has_its_count(capsys: pytest.CaptureFixture[str]) -> None:
    name, shares = put("a.jsonl", [*PROMPTS, *BROKEN]), {"heldout_share": 0.2, "test_share": 0.2}
    assert load(name, "prompts", bad_rows={"drop": 0.2}, **shares).height == len(PROMPTS)
    said = capsys.readouterr().err
    assert "here: 8 rows left out (bad_rows: drop), e.g. " in said, "one of the blank ones is a duplicate"
    assert "here: 4 rows: such as: 'info' is 'not 0'; give an object" in said
    assert "here: 3 rows: 'prompt' is missing or null" in said and "here: 1 row: prompt each content must not" in said


def test_columns_and_counts_of_reasons_are_not_thrown_together(capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["prompt,completion", *(f"what is {n}?,{n}" for n in range(80)), "why?,", "who?,", ",5", "a,b,c,d", "a"]
    Path("a.csv").write_text("\n".join(lines) + "\n")
    assert load("a.csv", "chat", bad_rows={"drop": 0.2}, heldout_share=0.2, test_share=0.0).height == 80
    said = capsys.readouterr().err
    assert "here: 2 rows: 'completion' is missing or null" in said and "here: 1 row: 'prompt' is missing" in said
    assert "here: 2 rows: such as: it has 4 cells" in said


def test_a_file_of_windows_is_not_read_as_latin_1() -> None:
    Path("a.csv").write_bytes("prompt,completion\nprice?,5 €\n".encode("cp1252"))
    with pytest.raises(DataError, match="line 2: byte 0x80 is a control character in latin-1; set encoding: cp1252"):
        load("a.csv", "chat", encoding="latin-1")


@pytest.mark.parametrize("header", ["prompt,completion,,", "prompt,completion,prompt"])
def test_a_csv_header_that_cannot_be_read_is_one_error(header: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A generator that was left behind used to print a traceback next to the error."""
    Path("a.csv").write_text(f"{header}\nwhy?,so,x,y\n", encoding="cp1252")
    with pytest.raises((DataError, TableError)):
        load("a.csv", "chat", encoding="cp1252")
    gc.collect()
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(("bad_rows", "most"), [("drop", 0.05), ({"drop": 0.05}, 0.05), ({"drop": 0.1}, 0.1)])
def test_a_larger_share_of_bad_rows_ends_the_stage(bad_rows: Any, most: float) -> None:
    """More than half of a broken file used to be left out with exit code 0."""
    name = put("a.jsonl", [*PROMPTS, *BROKEN])
    with pytest.raises(TableError) as caught:
        load(name, "prompts", bad_rows=bad_rows, heldout_share=0.2, test_share=0.2)
    said = str(caught.value)
    assert f"8 of 69 rows break the rules of a 'prompts' table, more of a.jsonl than bad_rows: {{drop: {most}}}" in said
    assert "Every reason:\n  4 rows: such as: 'info' is 'not 0'" in said
    assert said.endswith("or raise the share of bad_rows; rejected/table.rejected.parquet lists them all"), said
    assert load(name, "prompts", bad_rows={"drop": 0.12}, heldout_share=0.2, test_share=0.2).height == 60
    with pytest.raises(ParamsError, match="bad_rows"):
        check(FileTable, {"path": "a.jsonl", "bad_rows": {"drop": 1.5}}, where="x")


@pytest.mark.slow
def test_every_left_out_row_is_reported_in_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    name = put("a.jsonl", COMPLETIONS)
    asked = load(put("p.jsonl", PROMPTS), "prompts", heldout_share=0.2, test_share=0.2)
    capsys.readouterr()
    table = load(name, "chat", heldout_share=0.2, test_share=0.2)
    lost, heldout = asked.filter(split="test").height, table.filter(split="heldout").height
    assert set(table["problem"]) == set(asked.filter(pl.col("split") != "test")["problem"])
    reserved = "reserves their problems for test prompts, here or in another entry (test_share: 0 keeps them)"
    assert capsys.readouterr().err.splitlines() == [
        f"here: {lost} rows left out: test_share 0.2 {reserved}",
        f"here: 60 rows: {60 - lost - heldout} train, {heldout} held out (heldout_share 0.2)",
    ]
    assert load(name, "chat", heldout_share=0.0, test_share=0.0)["split"].to_list() == ["train"] * 60
    assert capsys.readouterr().err == "here: 60 rows: 60 train, 0 held out\n"
    with pytest.raises(DataError, match=r"'heldout' is empty. The table has 1 of the 1 row read: 1 train. Give more"):
        load(put("one.jsonl", COMPLETIONS[:1]), "chat", test_share=0.0)
    Path("d/more").mkdir(parents=True)
    for part, rows in {"train": COMPLETIONS[:40], "dev": COMPLETIONS[40:50], "test": COMPLETIONS[50:]}.items():
        put(f"d/{part}.jsonl", rows)
    put("d/other.jsonl", COMPLETIONS)
    Path("d/README.md").write_text("not data")
    capsys.readouterr()
    load("d", "chat", test_share=0.0, limit=8)
    assert capsys.readouterr().err.splitlines() == [
        "here: not read: README.md, more/",
        "here: not read: other; name them under `splits` if they are splits",
        "here: read only the first 8 rows of each split (limit)",
        "here: 8 rows of the test split left out: a chat table has none",
        "here: 24 rows: 8 train, 8 held out",
    ]


def test_several_assistant_turns_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    longer = {"messages": user("a") + assistant("b") + user("c") + assistant("d")}
    load(put("a.jsonl", [*MESSAGES, longer]), "chat", test_share=0.0)
    assert "here: 1 row with several assistant turns: sft trains on all of them" in capsys.readouterr().err


@pytest.mark.slow
def test_a_parquet_file_that_decodes_to_too_much_memory_is_refused() -> None:
    text, rows = "a" * 500_000, 400
    bomb = pa.table({"messages": [user(text) + assistant("b")] * rows, "other": ["x"] * rows})
    pq.write_table(bomb, "bomb.parquet")
    assert Path("bomb.parquet").stat().st_size < 1_000_000
    with Path("bomb.parquet").open("rb") as stream:
        with pytest.raises(ValueError, match=r"it decodes to 0\.2 GB or more, and at most 0\.1 GB fit"):
            check_decoded_size(stream, ["messages"], limit=100_000_000)
        check_decoded_size(stream, ["messages"], limit=210_000_000)
        check_decoded_size(stream, ["other"], limit=1_000_000)
    nulls = pa.table({"answer": pa.nulls(2_000_000, pa.string())})
    pq.write_table(nulls, "nulls.parquet")
    assert Path("nulls.parquet").stat().st_size < 10_000
    with Path("nulls.parquet").open("rb") as stream, pytest.raises(ValueError, match="it decodes to"):
        check_decoded_size(stream, ["answer"], limit=10_000_000)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ({}, "table.path is missing"),
        ({"path": ""}, "table.path"),
        ({"path": "a", "splits": {"dev": "x"}}, "table.splits.dev"),
        ({"path": "a", "heldout": 0.1}, "table.heldout: unknown key. Did you mean 'heldout_share'?"),
        ({"path": "a", "test_share": 0.5}, "table.test_share = 0.5"),
    ],
)
def test_invalid_sections_of_data_are_refused(section: Row, expected: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(FileTable, section, where="table")
    assert expected in str(caught.value)


@pytest.mark.slow
def test_many_rows_take_seconds() -> None:
    """An eighth of a million plain rows in well under the time that a million may take; the machine may be noisy."""
    with Path("a.jsonl").open("w") as stream:
        stream.writelines(
            json.dumps({"prompt": f"What is {n}+1?", "completion": str(n + 1)}) + "\n" for n in range(125_000)
        )
    began = time.process_time()
    load("a.jsonl", "chat")
    assert time.process_time() - began < 10


def test_parquet_rows_follow_the_same_rules_as_json_rows() -> None:
    """Parquet gives every turn every field; one that is null in a row is not there in it."""
    fields = [pa.field(name, pa.string()) for name in ("role", "content", "name")]
    rows = [row["messages"] for row in MESSAGES]
    turns = pa.array(rows, type=pa.list_(pa.struct(fields)))
    pq.write_table(pa.table({"messages": turns}), "a.parquet", row_group_size=7)
    expected = load(put("a.jsonl", MESSAGES), "chat", heldout_share=0.2)
    assert load("a.parquet", "chat", heldout_share=0.2).equals(expected)
    named = [*rows, [*user("a"), {**assistant("b")[0], "name": "Ann"}]]
    pq.write_table(pa.table({"messages": pa.array(named, type=turns.type)}), "b.parquet")
    with pytest.raises(TableError, match=r"b.parquet row 61: turn 2 of 'messages' has 'name', which would be lost"):
        load("b.parquet", "chat")


def test_variables_of_the_template_are_kept_as_json_and_part_of_the_id() -> None:
    rows = [
        {"prompt": "1?", "answer": "1", "chat_template_kwargs": {"enable_thinking": False, "mode": None}},
        {"prompt": "2?", "answer": "2", "chat_template_kwargs": '{"enable_thinking": true}'},
        {"prompt": "3?", "answer": "3"},
        {"prompt": "1?", "answer": "1"},
    ]
    frame = load(put("rows.jsonl", rows), "prompts", heldout_share=0.0, test_share=0.0)
    kept = ['{"enable_thinking":false}', '{"enable_thinking":true}', None, None]
    assert frame["chat_template_kwargs"].to_list() == kept
    plain = load(put("plain.jsonl", rows[2:]), "prompts", heldout_share=0.0, test_share=0.0)
    assert "chat_template_kwargs" not in plain.columns
    assert frame["id"].n_unique() == 4 and frame["id"].to_list()[2:] == plain["id"].to_list()
    assert [content_id(row, "prompts") for row in frame.iter_rows(named=True)] == frame["id"].to_list()


@pytest.mark.parametrize("value", [[1], "no", {"messages": 1}, {"bos_token": "x"}, {"a b": 1}])
def test_variables_that_a_template_cannot_have_are_refused(value: Any) -> None:
    name = put("rows.jsonl", [{"prompt": "1?", "answer": "1", "chat_template_kwargs": value}])
    with pytest.raises(PosttrainError, match="'chat_template_kwargs' is"):
        load(name, "prompts")


def test_a_table_that_does_not_fit_the_memory_is_refused_before_it_fills_it(
    workspace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [json.dumps({"text": f"{number} {'x' * 200}"}) for number in range(20_000)]
    (workspace / "long.jsonl").write_text("\n".join(rows))
    source = {"path": "long.jsonl", "heldout_share": 0.0}
    monkeypatch.setattr("posttrain.pipeline.tables.conversion.free_memory", lambda: 5e6)
    with pytest.raises(
        DataError, match=r"the first 16,384 rows take .* MB of memory, and the rest needs .* MB more than is free"
    ):
        load_table(FileTable(**source), "corpus", "data.files.mine.corpus")
    assert load_table(FileTable(**source, limit=5000), "corpus", "data.files.mine.corpus").height == 5000


@pytest.mark.parametrize(
    ("bad_rows", "said"),
    [
        ("skip", r"x\.bad_rows = 'skip': input should be 'stop' or 'drop'\."),
        ({"drop": 2}, r"x\.bad_rows\.drop = 2: input should be less than or equal to 1\."),
        ({"dropp": 0.1}, r"x\.bad_rows\.dropp: unknown key\. Did you mean 'drop'\?"),
    ],
)
def test_errors_of_bad_rows_have_the_path_of_params_yaml(bad_rows: object, said: str) -> None:
    with pytest.raises(ParamsError, match=said):
        check(FileTable, {"path": "a.csv", "bad_rows": bad_rows}, where="x")


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        (
            [COMPLETIONS[0]] * 5,
            {"heldout_share": 0.49, "test_share": 0.49},
            [
                "'train' is empty. The table has 1 of the 5 rows read: 1 heldout (by heldout_share); 4 rows left out: ",
                "keep the rows. Else lower heldout_share and test_share, or give more rows",
            ],
        ),
        (
            [{**row, "split": "heldout" if n % 2 else "train", "part": n % 2} for n, row in enumerate(COMPLETIONS)],
            {"where": {"part": [1]}},
            ["none of the usable rows is in the split train: 30 rows left out by `where`. Fix these rows"],
        ),
        (
            [{**row, "split": "heldout"} for row in COMPLETIONS] + [{"prompt": "", "completion": 1, "split": "train"}],
            {"bad_rows": "drop"},
            [
                (
                    "none of the usable rows is in the split train: 1 row cannot be used, the first: a.jsonl line 61: "
                    "'completion' is"
                )
            ],
        ),
        (
            [{**row, "split": "heldout"} for row in COMPLETIONS]
            + [{"prompt": "?", "completion": " ", "split": "train"}],
            {"bad_rows": "drop"},
            ["'train' is empty. The table has 60 of the 61 rows read: 60 heldout (as their source says); 1 row left"],
        ),
    ],
)
def test_an_empty_split_says_where_its_rows_went(rows: list[Row], options: Row, said: list[str]) -> None:
    name = put("a.jsonl", rows)
    with pytest.raises(DataError) as caught:
        load(name, "chat", **options)
    assert all(part in str(caught.value) for part in said), str(caught.value)
