"""A function of the user's own that makes tables: docs/data.md's example, every kind of table, and wrong results."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.errors import DataError
from posttrain.params import Params
from posttrain.tables.columns import SPLITS
from posttrain.tables.prepare import prepare
from posttrain.tables.store import read_table
from posttrain.tasks.task import Generator, Task, generated, task_tables
from tests.tables.samples import assistant, user
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
        ({}, "it returned the tables (none), and its Generator names chat"),
        ({"chats": pl.DataFrame([CHAT])}, "it returned the tables chats, and its Generator names chat"),
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

    with pytest.raises(DataError, match=r"function `my_tables`: it raised KeyError: 'table'. Fix it; POSTTRAIN_TRA"):
        generated("my_data:task", Generator(Params, ("chat",), my_tables), Params())
