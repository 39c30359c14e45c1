"""The entry for GSM8K that comes to mind first works, and so do its neighbours: the files' own splits hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.data.splits import training_prompts
from posttrain.errors import DataError
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import file_tables
from posttrain.pipeline.tables.store import read_table
from tests.pipeline.tables.gsm8k import row, write_gsm8k

TEST = {row(number)["question"] for number in range(60, 80)}
CHAT = {"rename": {"question": "prompt", "answer": "completion"}}
PROMPTS = {"rename": {"question": "prompt"}}


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_gsm8k(tmp_path / "my/gsm8k")
    return tmp_path


def made(entry: dict[str, Any]) -> dict[str, pl.DataFrame]:
    """The tables of an entry of `data.files`, checked and written by the stage's own function."""
    Path("params.yaml").write_text(json.dumps({"data": {"files": {"gsm8k": entry}}}))
    prepare("gsm8k", file_tables)
    return {kind: read_table(f"data/gsm8k/{kind}.parquet", kind) for kind in ("chat", "prompts")}


def questions(table: pl.DataFrame, split: str, column: str) -> set[str]:
    turns = table.filter(split=split)[column].to_list()
    return {row[0]["content"] for row in turns}


@pytest.mark.parametrize(
    ("root", "chat", "prompts"),
    [
        ("my/gsm8k", "main", "main"),
        ("my/gsm8k/main", ".", "."),
        ("my/gsm8k", "main/*.parquet", "main/*.parquet"),
        ("my/gsm8k", "main/train-00000-of-00001.parquet", "main"),
        ("my/gsm8k", "main/train-*.parquet", "main/*.parquet"),
    ],
)
def test_train_and_test_of_the_files_are_those_of_every_table(root: str, chat: str, prompts: str) -> None:
    tables = made({"path": root, "chat": {"path": chat, **CHAT}, "prompts": {"path": prompts, **PROMPTS}})
    assert questions(tables["prompts"], "test", "prompt") == TEST
    assert tables["prompts"].height == 80 and tables["chat"].height == 60
    for split in ("train", "heldout"):
        asked = questions(tables["chat"], split, "messages")
        assert asked == questions(tables["prompts"], split, "prompt") and asked and not asked & TEST


@pytest.mark.parametrize("test", ["main/test-00000-of-00001.parquet", "main/test-*.parquet"])
def test_the_test_file_alone_is_a_table_of_test_prompts(test: str) -> None:
    tables = made({"path": "my/gsm8k", "chat": {"path": "main", **CHAT}, "prompts": {"path": test, **PROMPTS}})
    assert set(tables["prompts"]["split"]) == {"test"} and questions(tables["prompts"], "test", "prompt") == TEST
    assert tables["chat"].height == 60 and set(tables["chat"]["split"]) == {"train", "heldout"}
    with pytest.raises(
        DataError, match=r"data/gsm8k/prompts.parquet: it has no training prompts, only test. Add a file"
    ):
        training_prompts(tables["prompts"], Path("data/gsm8k/prompts.parquet"))


def test_a_share_for_each_table_changes_nothing_about_the_test_prompts() -> None:
    chat, prompts = {"path": "main", "test_share": 0, **CHAT}, {"path": "main", "test_share": 0, **PROMPTS}
    tables = made({"path": "my/gsm8k", "chat": chat, "prompts": prompts})
    assert questions(tables["prompts"], "test", "prompt") == TEST and tables["chat"].height == 60


def test_pairs_whose_problem_is_a_test_prompt_are_left_out() -> None:
    """A helper column once had the name of their own column `chosen`, which ended in a traceback of polars."""
    pairs = [{"prompt": row(number)["question"], "chosen": "a", "rejected": "b"} for number in range(80)]
    Path("my/gsm8k/pairs.jsonl").write_text("\n".join(map(json.dumps, pairs)))
    entry = {"path": "my/gsm8k", "chat": {"path": "main", **CHAT}, "prompts": {"path": "main", **PROMPTS}}
    tables = made({**entry, "pairs": "pairs.jsonl"})
    found = read_table("data/gsm8k/pairs.parquet", "pairs")
    assert found.height == 60 and not set(found["problem"]) & set(tables["prompts"].filter(split="test")["problem"])
    assert found["chosen"].to_list()[0] == [{"role": "assistant", "content": "a"}]


def test_train_rows_that_are_test_prompts_elsewhere_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [row(number) for number in range(80)]
    Path("my/gsm8k/more.jsonl").write_text("\n".join(map(json.dumps, rows)))
    tables = made({"path": "my/gsm8k", "chat": {"path": "more.jsonl", **CHAT}, "prompts": {"path": "main", **PROMPTS}})
    assert not questions(tables["chat"], "train", "messages") & TEST and tables["chat"].height == 60
    said = "data.files.gsm8k.chat: 20 rows left out: their problems are in the split test of another table or file"
    assert said in capsys.readouterr().err


def test_files_that_disagree_name_the_lines_to_write(workspace: Path) -> None:
    folder = workspace / "my/own"
    folder.mkdir()
    rows = [row(number) for number in range(40)]
    for name, some in (
        ("chat/train", rows[:30]),
        ("chat/dev", rows[35:]),
        ("prompts/train", rows[20:30]),
        ("prompts/dev", rows[30:33]),
        ("prompts/test", rows[:2]),
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, some)))
    entry: dict[str, Any] = {"path": "my/own", "chat": {"path": "chat", **CHAT}}
    entry["prompts"] = {"path": "prompts", **PROMPTS}
    with pytest.raises(DataError) as caught:
        made(entry)
    message = str(caught.value)
    assert "my/own/chat/train.jsonl line 1: train, elsewhere test" in message, message
    lines = message.partition("with these lines in params.yaml:\n")[2]
    from ruamel.yaml import YAML

    written = YAML(typ="safe").load(lines)["data"]["files"]["gsm8k"]
    tables = made({**entry, **written})
    assert questions(tables["prompts"], "test", "prompt") == {one["question"] for one in rows[:2]}
    assert not questions(tables["chat"], "train", "messages") & questions(tables["prompts"], "test", "prompt")
