"""Options of rows: weights of turns, meanings of values, filters on own columns, checks of tool calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.errors import DataError, ParamsError, TableError
from posttrain.pipeline.tables.options import FileTable
from posttrain.settings.params import check
from tests.pipeline.tables.loading import load_table
from tests.pipeline.tables.samples import assistant, user

Row = dict[str, Any]
SHARES = {"heldout_share": 0, "test_share": 0}


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def load(rows: list[Row], kind: Any, **options: Any) -> pl.DataFrame:
    Path("a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    source = check(FileTable, {"path": "a.jsonl", **SHARES, **options}, where="here")
    return load_table(source, kind, "here")


def reason(rows: list[Row], kind: Any = "chat", **options: Any) -> str:
    with pytest.raises(TableError) as caught:
        load(rows, kind, **options)
    return str(caught.value)


def weighted(*weights: Any) -> Row:
    """A conversation whose answers have these weights; None: no weight."""
    turns: list[Row] = []
    for nth, weight in enumerate(weights):
        given = {} if weight is None else {"weight": weight}
        turns += [*user(f"q{nth}"), {**assistant(f"a{nth}")[0], **given}]
    return {"messages": turns}


def test_a_weight_of_0_is_kept_and_1_is_what_no_weight_is() -> None:
    table = load([weighted(0, None), weighted(1, None)], "chat")
    fields = table["fields"].to_list()
    assert json.loads(fields[0]) == [{}, {"weight": 0}, {}, {}] and fields[1] is None
    assert table["id"][1] == load([weighted(None, None)], "chat")["id"][0] != table["id"][0]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (weighted(0.5), "turn 2 of 'messages' has the weight 0.5; give 0 or 1, to a turn of the assistant"),
        (weighted(True), "has the weight True; give 0 or 1"),
        ({"messages": [{**user("q")[0], "weight": 0}, *assistant("a")]}, "turn 1 of 'messages' has the weight 0; give"),
        (weighted(0, 0), "every turn of the assistant has weight 0, so there is nothing to train; drop the row"),
    ],
)
def test_a_weight_that_means_nothing_is_refused(row: Row, said: str) -> None:
    assert f"a.jsonl line 1: {said}" in reason([row]) or said in reason([row])


def test_a_weight_where_it_cannot_be_honoured_is_refused() -> None:
    row = {"prompt": [*user("q"), {**assistant("a")[0], "weight": 0}, *user("r")], "chosen": "a", "rejected": "b"}
    assert "turn 2 of 'prompt' has 'weight', which would be lost" in reason([row], "pairs")


def test_values_are_given_a_meaning() -> None:
    rows = [{"prompt": f"{n}?", "completion": "a", "rating": "up" if n % 2 else "down"} for n in range(4)]
    options: Row = {"rename": {"rating": "label"}, "values": {"label": {"up": True, "down": False}}}
    assert load(rows, "feedback", **options)["label"].to_list() == [False, True, False, True]
    assert "'label' is 'meh', which `values` does not name (it has up, down); add it" in reason(
        [*rows, {"prompt": "x", "completion": "a", "rating": "meh"}], "feedback", **options
    )
    with pytest.raises(DataError, match=r"here.values: a 'feedback' table has no column 'lable'. Did you mean 'label'"):
        load(rows, "feedback", values={"lable": {"up": True}})


def test_a_label_that_is_no_truth_value_names_the_option_that_gives_it_one() -> None:
    """What the message proposes is then done, for a label and for the labels of steps."""
    rated = [{"prompt": "x", "completion": "a", "label": word} for word in ("up", "down")]
    steps = [{"prompt": "x", "completions": ["a", "b"], "labels": ["up", "down"]}]
    for rows, column in ((rated, "label"), (steps, "labels")):
        fix = f"map each value to its meaning, e.g. values: {{{column}: {{up: true, down: false}}}}"
        assert f"'{column}' is 'up'; give true/false or 1/0, or {fix}" in reason(rows, "feedback")
        values = {column: {"up": True, "down": False}}
        assert load(rows, "feedback", values=values)["label"].to_list() == [True, False]


@pytest.mark.parametrize(
    ("where", "kept"),
    [
        ({"source": ["a", "c"]}, [0, 2]),
        ({"score": {"min": 1}}, [1, 2]),
        ({"score": {"min": 1, "max": 1}}, [1]),
        ({"source": ["b"], "score": {"max": 5}}, [1]),
        ({"flag": [True]}, [0]),
    ],
)
def test_rows_are_chosen_by_their_own_columns(where: Row, kept: list[int], capsys: pytest.CaptureFixture[str]) -> None:
    values = [("a", 0, True), ("b", 1.0, False), ("c", "2", None), ("d", None, False)]
    rows = [
        {"text": str(nth), "source": source, "score": score, "flag": flag}
        for nth, (source, score, flag) in enumerate(values)
    ]
    table = load(rows, "corpus", where=where)
    assert table["text"].to_list() == [str(nth) for nth in kept]
    assert f"{len(rows) - len(kept)} rows left out by `where`" in capsys.readouterr().err


def test_a_choice_that_cannot_be_made_is_refused() -> None:
    rows = [{"text": "a", "score": "high"}]
    assert "'score' is 'high', not a number, and `where` has min or max" in reason(
        rows, "corpus", where={"score": {"min": 1}}
    )
    huge = [{"text": "a", "score": 10**400}]
    assert "not a number, and `where` has min or max" in reason(huge, "corpus", where={"score": {"min": 1}})
    with pytest.raises(DataError, match="`where` matches none of the 1 rows"):
        load(rows, "corpus", where={"score": ["low"]})
    with pytest.raises(DataError, match=r"no column 'scores' for `where`; it has text, score. Did you mean 'score'"):
        load(rows, "corpus", where={"scores": ["low"]})
    with pytest.raises(ParamsError, match="give min, max or both, or a list of values"):
        load(rows, "corpus", where={"score": {}})


TOOLS = [{"type": "function", "function": {"name": "add", "parameters": {}}}]


def calling(call: Row, answer: Row) -> Row:
    called = {"role": "assistant", "content": None, "tool_calls": [call]}
    return {
        "messages": [*user("q"), called, {"role": "tool", "content": "3", **answer}, *assistant("3")],
        "tools": TOOLS,
    }


def call(name: str = "add", arguments: Any = None, **more: Any) -> Row:
    return {"type": "function", "function": {"name": name, "arguments": arguments or {}}, **more}


def test_a_call_with_null_content_is_read_as_openai_writes_it() -> None:
    table = load([calling(call(id="c1"), {"tool_call_id": "c1"})], "chat")
    assert [turn["content"] for turn in table["messages"][0]] == ["q", "", "3", "3"]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            calling(call(id="c1"), {"tool_call_id": "c2"}),
            "turn 3 answers the call 'c2', which the assistant's turn before",
        ),
        (calling(call("sub"), {}), "turn 2 calls 'sub', which is not in 'tools' (add); add it"),
        (calling(call(arguments="[1"), {}), "has the tool call"),
        (calling(call(id=3), {}), "has the call id 3; give a text"),
        (
            {"messages": calling(call(id="c"), {"tool_call_id": "c"})["messages"] * 2, "tools": TOOLS},
            "turn 6 has the call id 'c', which occurs twice",
        ),
    ],
)
def test_tool_calls_are_checked(row: Row, said: str) -> None:
    assert said in reason([row])


def test_two_turns_of_the_user_in_a_row_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    load([{"messages": [*user("a"), *user("b"), *assistant("c")]}], "chat")
    assert "1 row with two consecutive user turns" in capsys.readouterr().err
