"""The rows of a run of `sft.runs`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.data.columns import from_rows
from posttrain.pipeline.runs.sft import SftRun, sft_rows
from posttrain.pipeline.runs.training import RunInputs
from posttrain.pipeline.tables.store import write_table
from posttrain.settings.params import check
from tests.library.models.tiny import tiny_folder


def run(**given: Any) -> SftRun:
    return check(SftRun, {"start": "base/tiny", "data": "mine/chat", **given}, where="sft.runs.a")


def test_the_kind_of_the_table() -> None:
    assert run().kind == "chat" and run(data="mine/corpus").kind == "corpus"


def test_rows_are_tokenised_for_the_start_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models/base").mkdir(parents=True)
    tiny_folder(tmp_path / "tiny").rename("models/base/tiny")

    def talk(number: int) -> list[dict[str, str]]:
        return [{"role": "user", "content": f"{number}+1="}, {"role": "assistant", "content": str(number + 1)}]

    splits = ("train", "train", "heldout")
    chat = [{"split": split, "problem": str(nth), "messages": talk(nth)} for nth, split in enumerate(splits)]
    write_table(from_rows(chat, "chat"), Path("data/mine/chat.parquet"), "chat")
    texts = [{"split": split, "text": f"{nth}+1=2 " * 40} for nth, split in enumerate(splits)]
    write_table(from_rows(texts, "corpus"), Path("data/mine/corpus.parquet"), "corpus")
    found = sft_rows(RunInputs("sft@a", run()))
    assert (len(found.examples), len(found.heldout), len(found.watched)) == (2, 1, 0)
    assert found.models.folder == Path("models/base/tiny")
    windows = sft_rows(RunInputs("sft@a", run(data="mine/corpus", window=16)))
    assert len(windows.examples) > 2 and all(len(row) <= 17 for one in windows.examples for row in one.rows)
