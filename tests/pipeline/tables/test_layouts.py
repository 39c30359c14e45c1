"""Tool use, ShareGPT and Alpaca, texts made of several columns, and columns that are kept as info."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from posttrain.data.columns import Kind, content_id
from posttrain.errors import DataError, ParamsError, TableError
from posttrain.pipeline.tables.options import FileTable
from posttrain.pipeline.tables.store import check_table, read_table, write_table
from posttrain.settings.params import check
from tests.pipeline.tables.loading import load_table
from tests.pipeline.tables.samples import assistant, user

Row = dict[str, Any]
ALL: Row = {"heldout_share": 0.0, "test_share": 0.0}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Bern"}}}


def tool_row(n: int = 0) -> Row:
    return {
        "messages": [
            *user(f"Weather in Bern, day {n}?"),
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "name": "weather", "tool_call_id": "c1", "content": "rain"},
            *assistant("It rains."),
        ],
        "tools": [WEATHER],
    }


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_a_turn_that_only_calls_a_tool_needs_no_content(content: Row) -> None:
    row = tool_row()
    row["messages"][1] = {"role": "assistant", "tool_calls": [CALL], **content}
    assert load([row], "chat").equals(load([tool_row()], "chat"))


PLAIN = {"messages": [*user("1+1?"), *assistant("2")]}


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def put(rows: list[Row], name: str = "a.jsonl") -> str:
    if name.endswith(".jsonl"):
        Path(name).write_text("\n".join(json.dumps(row) for row in rows))
    else:
        pq.write_table(pa.Table.from_pylist(rows), name)
    return name


def load(rows: list[Row], kind: Kind, name: str = "a.jsonl", **params: Any) -> pl.DataFrame:
    loaded = load_table(FileTable(path=put(rows, name), **{**ALL, **params}), kind, "here")
    return check_table(loaded, kind, f"{kind}.parquet")


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_tool_use_is_stored_with_the_turns(name: str) -> None:
    table = load([tool_row()], "chat", name)
    row = table.row(0, named=True)
    assert [turn["role"] for turn in row["messages"]] == ["user", "assistant", "tool", "assistant"]
    assert [turn["content"] for turn in row["messages"]] == ["Weather in Bern, day 0?", "", "rain", "It rains."]
    assert json.loads(row["fields"]) == [{}, {"tool_calls": [CALL]}, {"name": "weather", "tool_call_id": "c1"}, {}]
    assert json.loads(row["tools"]) == [WEATHER]
    write_table(table, "chat.parquet", "chat")
    assert read_table("chat.parquet", "chat").equals(table)


def test_a_table_without_tool_use_has_no_extra_columns_and_the_same_ids() -> None:
    assert load([PLAIN], "chat").columns == ["id", "split", "problem", "messages"]
    assert load([{**PLAIN, "tools": []}], "chat").equals(load([PLAIN], "chat"))


@pytest.mark.slow
def test_tool_use_changes_only_the_id_of_its_row() -> None:
    other = {**tool_row(), "tools": [{"type": "function", "function": {"name": "weather"}}]}
    table = load([PLAIN, tool_row(), other, tool_row()], "chat")
    assert table.height == 3, "the fourth row is the second"
    assert table["id"][0] == load([PLAIN], "chat")["id"][0] == content_id(PLAIN, "chat")
    assert table["id"].to_list() == [content_id(row, "chat") for row in table.iter_rows(named=True)]
    assert table["id"][1] == load([tool_row()], "chat")["id"][0]


@pytest.mark.slow
def test_rows_with_and_without_tools_in_several_batches() -> None:
    rows = [{"messages": [*user(f"{n}?"), *assistant("a")]} for n in range(8192)] + [tool_row()]
    assert load(rows, "chat")["tools"].null_count() == 8192


def test_arguments_as_json_text_are_the_same_row() -> None:
    text = json.loads(json.dumps(tool_row()))
    text["messages"][1]["tool_calls"][0]["function"]["arguments"] = '{"city": "Bern"}'
    text["tools"] = json.dumps(text["tools"])
    table = load([tool_row()], "chat")
    assert load([text], "chat").equals(table)
    assert table["tools"][0].startswith('[{"type":"function","function":{"name"'), (
        "keys in their order, as templates write"
    )


def with_turn(nth: int, **changed: Any) -> Row:
    row = json.loads(json.dumps(tool_row()))
    row["messages"][nth] |= changed
    return row  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({**tool_row(), "tools": {"a": 1}}, "'tools' is {'a': 1}; give a list of function schemas, each with a name"),
        ({**tool_row(), "tools": "nonsense"}, "'tools' is 'nonsense'; give a list"),
        ({**tool_row(), "tools": [{"type": "function"}]}, "give a list of function schemas"),
        (with_turn(0, tool_calls=[CALL]), "'tool_calls' of turn 1 of 'messages' must be a list, in a turn of the ass"),
        (with_turn(1, tool_calls=[{"function": {"name": "f", "arguments": "{"}}]), "turn 2 of 'messages' has the tool"),
        (with_turn(1, tool_calls=[{"function": {"name": "f", "arguments": {"x": "\x1b"}}}]), "control characters"),
        (with_turn(1, tool_calls=None), "the content of turn 2 of 'messages' is missing or null"),
        (with_turn(1, tool_calls=[]), "the content of turn 2 of 'messages' is missing or null"),
        (with_turn(0, name="Ann"), "turn 1 of 'messages' has 'name', which would be lost"),
        (with_turn(3, reasoning_content=7), "'reasoning_content' of turn 4 of 'messages' is a number; give a text"),
        (with_turn(3, audio="a"), "turn 4 of 'messages' has 'audio', which would be lost"),
    ],
)
def test_invalid_tool_use_is_refused_with_its_place(row: Row, expected: str) -> None:
    with pytest.raises(TableError) as caught:
        load([PLAIN, row], "chat")
    assert expected in str(caught.value)


def test_tool_use_in_other_tables_is_refused() -> None:
    calling = [{"role": "assistant", "content": "b", "tool_calls": [CALL]}]
    with pytest.raises(TableError, match="turn 1 of 'chosen' has 'tool_calls', which would be lost"):
        load([{"prompt": "a", "chosen": calling, "rejected": "c"}], "pairs")


SHAREGPT = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"conversations": SHAREGPT}, PLAIN["messages"]),
        ({"conversations": PLAIN["messages"]}, PLAIN["messages"]),
        (
            {"conversations": SHAREGPT, "system": "Be kind."},
            [{"role": "system", "content": "Be kind."}, *PLAIN["messages"]],
        ),
        ({"instruction": "1+1?", "output": "2"}, PLAIN["messages"]),
        ({"instruction": "1+1?", "input": "", "output": "2"}, PLAIN["messages"]),
        ({"instruction": "Add.", "input": "1, 1", "output": "2"}, [*user("Add.\n1, 1"), *assistant("2")]),
    ],
)
def test_sharegpt_and_alpaca(row: Row, messages: list[Row]) -> None:
    assert load([row], "chat")["messages"][0].to_list() == messages


@pytest.mark.parametrize(
    ("kind", "row"),
    [
        ("chat", {"prompt": "1+1?", "completion": "2"}),
        ("prompts", {"prompt": "1+1?", "answer": "2"}),
        ("pairs", {"prompt": "1+1?", "chosen": "2", "rejected": "3"}),
        ("pairs", {"chosen": PLAIN["messages"], "rejected": [*user("1+1?"), *assistant("3")]}),
        ("feedback", {"prompt": "1+1?", "completion": "2", "label": True}),
        ("feedback", {"prompt": "1+1?", "completions": ["2"], "labels": [True]}),
    ],
)
def test_a_column_system_is_the_first_turn_of_every_layout(kind: Kind, row: Row) -> None:
    """As Orca's pairs have it."""
    column = "messages" if kind == "chat" else "prompt"
    system = {"role": "system", "content": "Be brief."}
    plain, made = (load([found], kind)[column][0].to_list() for found in (row, {**row, "system": "Be brief."}))
    assert made == [system, *plain]
    assert load([{**row, "system": ""}], kind)[column][0].to_list() == plain


def test_a_column_system_keeps_the_fields_of_turns_in_their_place() -> None:
    calling = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    row = load([{"messages": [*user("a"), calling], "system": "Be brief."}], "chat").row(0, named=True)
    assert [bool(field) for field in json.loads(row["fields"])] == [False, False, True]


def test_what_would_be_lost_of_a_row_is_refused() -> None:
    twice = [{"role": "system", "content": "a"}, *user("b")]
    with pytest.raises(TableError, match="begins with a system turn, and there is a column 'system' too"):
        load([{"prompt": twice, "completion": "c", "system": "d"}], "chat")
    tools = [{"type": "function", "function": {"name": "add"}}]
    for kind, row in {"pairs": {"chosen": "b", "rejected": "c"}, "prompts": {"answer": "b"}}.items():
        with pytest.raises(TableError, match=f"'tools' would be lost: {kind} have no tools"):
            load([{"prompt": "a", **row, "tools": tools}], kind)
    load([{"prompt": "a", "answer": "b", "info": {"tools": tools}, "tools": tools}], "prompts")


def test_alpaca_pairs() -> None:
    row = load([{"instruction": "Add.", "input": "1, 1", "chosen": "2", "rejected": "3"}], "pairs").row(0, named=True)
    assert [row[name] for name in ("prompt", "chosen", "rejected")] == [
        user("Add.\n1, 1"),
        assistant("2"),
        assistant("3"),
    ]


OPENAI: Row = {
    "input": {"messages": [{"role": "system", "content": "Be kind."}, *user("1+1?")]},
    "preferred_output": assistant("2"),
    "non_preferred_output": assistant("3"),
}


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_preference_rows_of_openai_are_pairs(name: str) -> None:
    row = load([OPENAI], "pairs", name).row(0, named=True)
    assert row["prompt"] == OPENAI["input"]["messages"]
    assert (row["chosen"], row["rejected"]) == (assistant("2"), assistant("3"))
    same = {"prompt": OPENAI["input"]["messages"], "chosen": "2", "rejected": "3"}
    assert load([same], "pairs")["id"][0] == row["id"]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"input": "1+1?"}, "'input' is '1+1?'; give {messages: [...]}"),
        ({"input": {"messages": user("a"), "tools": [WEATHER]}}, "'input' has 'tools', which would be lost"),
        ({"input": {"messages": [{"role": "user"}]}}, "the content of turn 1 of 'input' is missing or null"),
        ({"preferred_output": "2"}, "'preferred_output' is '2'; give a list of one turn of the assistant"),
        ({"preferred_output": []}, "'preferred_output' is []; give a list of one turn"),
        ({"non_preferred_output": [*assistant("3"), *assistant("4")]}, "give a list of one turn of the assistant"),
        ({"non_preferred_output": user("3")}, "the turn of 'non_preferred_output' has the role 'user'; give 'assist"),
        ({"non_preferred_output": None}, "'non_preferred_output' is missing or null; fill it in or drop the row"),
    ],
)
def test_invalid_preference_rows_of_openai_are_refused_with_their_line(changed: Row, expected: str) -> None:
    with pytest.raises(TableError) as caught:
        load([OPENAI, {**OPENAI, **changed}], "pairs")
    assert expected in str(caught.value) and "a.jsonl line 2" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"conversations": "a"}, "'conversations' is a text; give a list of turns with 'from' and 'value'"),
        ({"conversations": [{"from": "bard", "value": "a"}]}, "turn 1 of 'conversations' is from 'bard', expected"),
        ({"conversations": [{"from": "human"}]}, "the content of turn 1 of 'conversations' is missing"),
        ({"conversations": [{"from": "gpt", "value": "a", "audio": 0}]}, "has 'audio', which would be lost"),
        ({"instruction": ["a"], "output": "b"}, "'instruction' is a list; give a text"),
    ],
)
def test_invalid_sharegpt_and_alpaca_rows_are_refused(row: Row, expected: str) -> None:
    with pytest.raises(TableError) as caught:
        load([PLAIN, row], "chat")
    assert expected in str(caught.value)


def test_a_template_joins_several_columns() -> None:
    row = {"question": "Which?", "choices": ["a) 1", "b) 2"], "n": 2, "right": "b"}
    template = {"prompt": "{question} {{{n}}}\n{choices}", "answer": "{right}"}
    table = load([row], "prompts", template=template, info=["n", "choices"])
    assert table["prompt"][0].to_list() == user("Which? {2}\na) 1\nb) 2")
    assert table["answer"].to_list() == ["b"]
    assert json.loads(table["info"][0]) == {"n": 2, "choices": ["a) 1", "b) 2"]}


def test_a_template_works_together_with_renamed_columns() -> None:
    row = {"prompt": "1+1?", "reply": "2"}
    table = load([row], "chat", template={"prompt": "Q: {prompt}"}, rename={"reply": "completion"})
    assert table["messages"][0].to_list() == [*user("Q: 1+1?"), *assistant("2")]


def test_a_template_needs_its_columns_in_every_row() -> None:
    rows = [{"a": "x", "b": "y"}, {"a": "x", "b": None}, {"a": "x"}]
    with pytest.raises(TableError) as caught:
        load(rows, "prompts", template={"prompt": "{a} {b}"})
    for line in (2, 3):
        assert f"a.jsonl line {line}: 'b' is missing or null, but the template of 'prompt' needs it" in str(
            caught.value
        )


@pytest.mark.parametrize(
    ("kind", "params", "expected"),
    [
        (
            "prompts",
            {"template": {"prompt": "{txet}"}},
            "a.jsonl has no column 'txet' for a template; it has text, level. Did you mean 'text'?",
        ),
        (
            "prompts",
            {"template": {"promt": "{text}"}},
            "a 'prompts' table has no column 'promt'. Did you",
        ),
        (
            "prompts",
            {"rename": {"text": "prompt"}, "info": ["levl"]},
            "no column 'levl' to put into info; it has text, level. Did you mean 'level'?",
        ),
        ("corpus", {"info": ["level"]}, "here.info: a 'corpus' table has no column info"),
    ],
)
def test_unknown_columns_in_rename_template_or_info_are_refused(kind: Kind, params: Row, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        load([{"text": "a", "level": 1}], kind, **params)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"template": {"prompt": "{a.b}"}}, "braces may contain only the name of a column"),
        ({"template": {"prompt": "{a!r}"}}, "braces may contain only the name of a column"),
        ({"template": {"prompt": "{}"}}, "braces may contain only the name of a column"),
        ({"template": {"prompt": "{a"}}, "expected '}' before end of string"),
        (
            {"template": {"prompt": "{a}"}, "rename": {"b": "prompt"}},
            "the column 'prompt' is created twice, once by `rename`",
        ),
    ],
)
def test_invalid_templates_are_refused(params: Row, expected: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(FileTable, {"path": "a", **params}, where="table")
    assert expected in str(caught.value)
