"""A function of the user's own that makes tables: docs/data.md's example, every kind of table, and wrong results."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.columns import SPLITS
from posttrain.errors import DataError, PosttrainError
from posttrain.pipeline.lock.code_manifest import Library
from posttrain.pipeline.runs.task_tables import generated, task_tables
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.store import read_table
from posttrain.settings.params import Params
from posttrain.tasks.task import Generator, Task, load_task
from tests.pipeline.tables.samples import assistant, user
from tests.workspace import ROOT

NAMED = {"split": "train", "problem": "p"}
ROWS: dict[str, dict[str, Any]] = {
    "corpus": {"split": "train", "text": "a"},
    "chat": {**NAMED, "messages": user("a") + assistant("b")},
    "prompts": {**NAMED, "prompt": user("a")},
    "pairs": {**NAMED, "prompt": user("a"), "chosen": assistant("b"), "rejected": assistant("c")},
    "feedback": {**NAMED, "prompt": user("a"), "completion": assistant("b"), "label": True},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "custom").mkdir()
    yield tmp_path
    sys.modules.pop("my_data", None)
    load_task.cache_clear()


def test_the_example_of_the_page(folder: Path) -> None:
    page = (ROOT / "docs/data.md").read_text(encoding="utf-8")
    section = page.partition("## A function of your own that makes a table")[2]
    code, settings = (re.findall(rf"```{one}\n(.*?)```", section, re.DOTALL)[0] for one in ("python", "yaml"))
    (folder / "custom/my_data.py").write_text(code)
    (folder / "params.yaml").write_text(settings)
    prepare("numbers", task_tables)
    table = read_table("data/numbers/corpus.parquet", "corpus")
    assert dict(table["split"].value_counts().rows()) == {"train": 90, "heldout": 10}


def made(result: Any, *kinds: Any) -> dict[Any, Any]:
    """The tables of a function that returns this."""

    def my_tables(params: Params) -> Any:
        return result

    task = Task(Generator(Params, kinds, my_tables))
    assert task.generator is not None
    return generated("my_data:task", task.generator, Params())


def test_every_kind(kind: Any) -> None:
    if not SPLITS[kind]:
        with pytest.raises(DataError, match="kinds of tables are corpus, chat, prompts, pairs, feedback"):
            made({kind: pl.DataFrame()}, kind)
    else:
        assert made({kind: pl.DataFrame([ROWS[kind]])}, kind)[kind].height == 1


CHAT = ROWS["chat"]


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ([CHAT], "it returned a list, not a dict of tables. Return a dict with a polars DataFrame for each of: chat"),
        ({"chat": [CHAT]}, "its `chat` table is a list, not a polars DataFrame. Return pl.DataFrame(rows)"),
        ({}, "it returned the tables (none), but its Generator declares chat"),
        ({"chats": pl.DataFrame([CHAT])}, "it returned the tables chats, but its Generator declares chat"),
        (
            {"chat": pl.DataFrame([{"split": "train", "prompt": "a"}])},
            "its `chat` table is wrong: column 'problem' (str) is missing; column 'messages' (list[struct{role: str, ",
        ),
        (
            {"chat": pl.DataFrame([{**CHAT, "messages": "a"}])},
            "column 'messages' has the type str, not list[struct{role: str, content: str}]. A 'chat' table has the ",
        ),
        (
            {"chat": pl.DataFrame([CHAT, {**CHAT, "problem": "q", "messages": user("z")}])},
            "1 of 2 rows of its `chat` table (counted from 0) break a rule:\n  row 1, messages = [{'role': 'user', '",
        ),
        ({"chat": pl.DataFrame([{**CHAT, "split": "dev"}])}, "row 0, split = 'dev': must be one of train, heldout"),
    ],
)
def test_wrong_results_name_the_function(result: Any, expected: str) -> None:
    with pytest.raises(DataError) as caught:
        made(result, "chat")
    message = str(caught.value)
    assert message.startswith("task 'my_data:task', function `") and "my_tables`: " in message and expected in message


def test_a_function_that_raises_is_named() -> None:
    def my_tables(params: Params) -> Any:
        return {}["table"]

    with pytest.raises(
        DataError, match=r"function `my_tables`: it raised KeyError: 'table' \(.* line \d+\)\. Fix it; POSTTRAIN_TRA"
    ):
        generated("my_data:task", Generator(Params, ("chat",), my_tables), Params())


SOURCE = """
import json
from pathlib import Path

import polars as pl

from posttrain.settings.params import Params
from posttrain.tasks.task import Generator, Task


class Support(Params):
    file: str = "custom/support.jsonl"


def tables(params):
    found = [json.loads(line) for line in open(params.file)]
    roles = {"user": "q", "assistant": "a"}
    rows = [{"messages": [{"role": role, "content": one[key]} for role, key in roles.items()]} for one in found]
    return {"chat": pl.DataFrame(rows)}


support = Task(Generator(Support, ("chat",), tables))
"""


def put_source(folder: Path, file: str = "custom/support.jsonl", code: str = SOURCE, **settings: Any) -> None:
    (folder / "custom/my_data.py").write_text(code)
    rows = [{"q": f"question {n}?", "a": f"answer {n}"} for n in range(60)]
    (folder / file).parent.mkdir(exist_ok=True)
    (folder / file).write_text("\n".join(map(json.dumps, [*rows, rows[0]])))
    run = {"task": "my_data:support", "file": file, **settings}
    (folder / "params.yaml").write_text(json.dumps({"data": {"tasks": {"mine": run}}}))


def test_a_source_of_your_own_gets_splits_and_loses_duplicates(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_source(folder, heldout_share=0.2, test_share=0.0)
    prepare("mine", task_tables)
    table = read_table("data/mine/chat.parquet", "chat")
    assert table.height == 60 and set(table["split"]) == {"train", "heldout"}
    assert "1 row left out: duplicates of an earlier row of the same split" in capsys.readouterr().err


@pytest.mark.slow
def test_bad_rows_of_a_source_of_your_own_are_left_out_where_that_is_chosen(folder: Path) -> None:
    blank = SOURCE.replace("found = [", 'found = [{"q": "x", "a": " "}] + [')
    put_source(folder, code=blank, heldout_share=0.2)
    with pytest.raises(
        PosttrainError, match=r"(?s)1 of 62 rows break the rules of a 'chat' table:\n  function `tables`, row 0"
    ):
        prepare("mine", task_tables)
    put_source(folder, code=blank, heldout_share=0.2, bad_rows="drop")
    prepare("mine", task_tables)
    assert "x" not in str(read_table("data/mine/chat.parquet", "chat")["messages"].to_list()[0])
    put_source(folder, bad_row="drop")
    with pytest.raises(PosttrainError, match="bad_row"):
        prepare("mine", task_tables)


@pytest.mark.slow
def test_a_change_of_a_named_file_is_a_change_of_the_run(folder: Path) -> None:
    put_source(folder)
    settings = json.loads((folder / "params.yaml").read_text())
    before = Library().code("data_tasks@mine", settings)["files"]
    with (folder / "custom/support.jsonl").open("a") as file:
        file.write("\n")
    after = Library().code("data_tasks@mine", settings)["files"]
    assert {name for name in after if after[name] != before[name]} == {"custom/support.jsonl"}
    settings["data"]["tasks"]["mine"]["file"] = "custom/"
    assert "custom/support.jsonl" in Library().code("data_tasks@mine", settings)["files"]


@pytest.mark.parametrize(
    "code",
    [
        SOURCE,
        SOURCE.replace(
            "    found = [",
            "    try:\n        open(params.file)\n    except Exception:\n        pass\n    found = [] or [",
        ),
    ],
)
def test_a_file_that_the_run_does_not_name_is_refused(folder: Path, code: str) -> None:
    put_source(folder, file="my/support.jsonl", code=code)
    said = r"it opens my/support.jsonl, which its run does not list.*Move it to custom/ and pass it as a param"
    with pytest.raises(DataError, match=said):
        prepare("mine", task_tables)
