"""The rows that are scored."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.data.columns import from_rows
from posttrain.errors import DataError, ParamsError
from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.commands.reward import rows as module
from posttrain.pipeline.commands.reward.rows import csv_dialect, file_rows, infos_of, readable_file, rollouts_of
from posttrain.pipeline.tables.readers import CsvDialect
from posttrain.pipeline.tables.store import read_table, write_table
from posttrain.text.chat import ChatText
from tests.library.models.tiny import tiny_folder

RESULTS = Path("results/sft/rollouts.parquet")


def test_files_that_can_be_read(finished: Path) -> None:
    Path("my").mkdir()
    Path("my/a.csv").touch()
    Path("my/a.txt").touch()
    assert readable_file("my/a.csv") == Path("my/a.csv") and readable_file(str(RESULTS)) == RESULTS
    with pytest.raises(DataError, match="cannot be read"):
        readable_file("my/a.txt")
    assert csv_dialect(";", None) == CsvDialect(";", None) and csv_dialect(None, "cp1252") == CsvDialect(None, "cp1252")
    with pytest.raises(ParamsError, match="is not one character"):
        csv_dialect(";;", None)


def test_rollouts_have_their_tokens_and_info(finished: Path) -> None:
    found = rollouts_of(RESULTS, 2, None)
    stored = read_table(RESULTS, "rollouts").row(0, named=True)
    first = found[0].rollout
    assert [row.number for row in found] == [1, 2] and first.text == stored["completion"]
    assert (list(first.row.rest), first.prompt.id, first.prompt.info) == (
        stored["completion_ids"],
        stored["prompt_id"],
        {},
    )
    several = {**stored, "mask": [False, *stored["mask"][1:]], "completion": "user: a\n\nassistant: b"}
    assert module._sampled(several, (), {"x": 1}).text == "b"
    assert infos_of(RESULTS, {"a"}) == {}
    row = {
        "prompt": [{"role": "user", "content": "a"}],
        "answer": "5",
        "problem": "a",
        "split": "test",
        "task": "",
        "info": '{"k": 1}',
    }
    table = from_rows([row], "prompts")
    write_table(table, Path("data/two_step/prompts.parquet"), "prompts")
    assert infos_of(RESULTS, {table["id"][0], "b"}) == {table["id"][0]: {"k": 1}}
    Path("params.yaml").unlink()
    assert infos_of(RESULTS, {table["id"][0]}) == {}


def test_rows_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"prompt": f"{nth}+1=", "completion": str(nth + 1)} for nth in range(3)]
    Path("a.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = file_rows(Path("a.jsonl"), 2, lambda _: None, None)
    assert [(row.number, row.rollout.text) for row in found] == [(1, "1"), (2, "2")]
    text = ChatText(load_tokenizer(tiny_folder(tmp_path)))
    (whole, _) = file_rows(Path("a.jsonl"), 2, lambda _: None, text)
    tokens = whole.rollout.row.rest
    assert len(tokens) == len(whole.rollout.logps) > 1 and text.stops.decode(list(tokens)[:-1]) == "1"
