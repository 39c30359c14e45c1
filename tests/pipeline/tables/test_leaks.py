"""Test prompts among training rows: equal but for case, spaces or a system turn, or in another entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.report.build import learned
from posttrain.pipeline.report.tables import health_list
from posttrain.pipeline.tables.leaks import leaks_of, tables_under
from posttrain.pipeline.tables.ngrams import grams
from posttrain.pipeline.tables.prepare import prepare
from posttrain.pipeline.tables.sources import file_tables


@pytest.fixture(autouse=True)
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my").mkdir()
    return tmp_path


def put(name: str, rows: list[dict[str, Any]]) -> None:
    Path("my", name).write_text("\n".join(map(json.dumps, rows)))


def asked(number: int) -> str:
    return f"How many apples are in basket {number}?"


def chat(prompts: list[Any]) -> list[dict[str, Any]]:
    return [{"prompt": prompt, "completion": "5"} for prompt in prompts]


def made(run: str, **tables: str) -> None:
    file = Path("params.yaml")
    params = json.loads(file.read_text()) if file.exists() else {"data": {"files": {}}}
    params["data"]["files"][run] = {"path": "my", **tables}
    file.write_text(json.dumps(params))
    prepare(run, file_tables)


SAME = [asked(1).upper(), f"  {asked(2)}\n", asked(3).replace(" ", "  ")]
SYSTEM = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked(4)}]
TESTS = [{"prompt": asked(n), "answer": "5"} for n in range(30)]
OTHERS = [asked(n) for n in range(100, 140)]


def test_the_stage_counts_rows_that_are_test_prompts_but_for_their_form(capsys: pytest.CaptureFixture[str]) -> None:
    put("test.jsonl", TESTS)
    put("chat.jsonl", chat([*SAME, SYSTEM, *OTHERS, asked(5)]))
    made("mine", chat="chat.jsonl", prompts="test.jsonl")
    said = capsys.readouterr().err
    assert "mine/chat: 4 training rows have the question of a test prompt of mine/prompts" in said, "not the equal one"
    assert "data.filters: {mine_chat_clean: {data: mine/chat, against: mine/prompts, reward_model: none}}" in said
    put("chat.jsonl", chat(OTHERS))
    made("mine", chat="chat.jsonl", prompts="test.jsonl")
    assert "test prompt" not in capsys.readouterr().err


def test_what_is_only_alike_is_none() -> None:
    put("test.jsonl", [{"prompt": "Is 3 + 4 = 7?", "answer": "yes"}, {"prompt": "What?", "answer": "no"}])
    put("chat.jsonl", chat(["Is 3 - 4 = 7?", "Is 3 + 4 = 7? Say why.", *OTHERS]))
    made("mine", chat="chat.jsonl", prompts="test.jsonl")
    assert leaks_of(["mine/chat"], tables_under(Path("data"))) == []


def test_the_report_counts_each_table_that_is_learned_from_in_whatever_entry() -> None:
    put("test.jsonl", TESTS)
    put("chat.jsonl", chat([asked(7), asked(8), *OTHERS]))
    put("pairs.jsonl", [{"prompt": prompt, "chosen": "5", "rejected": "6"} for prompt in (*SAME, *OTHERS)])
    long = [
        {"role": "user", "content": asked(9)},
        {"role": "assistant", "content": "5"},
        {"role": "user", "content": "Why?"},
    ]
    put("talks.jsonl", chat([long, *OTHERS]))
    for run, tables in {
        "held": {"prompts": "test.jsonl"},
        "other": {"chat": "chat.jsonl", "pairs": "pairs.jsonl"},
    }.items():
        made(run, **tables)
    made("talks", chat="talks.jsonl")
    params = json.loads(Path("params.yaml").read_text())
    params["sft"] = {"runs": {"main": {"start": "base/a", "data": "other/chat"}, "b": {"data": "talks/chat"}}}
    params["preference"] = {"runs": {"dpo": {"algorithm": "dpo", "start": "sft/main", "data": "other/pairs"}}}
    Path("params.yaml").write_text(json.dumps(params))
    assert learned(read()) == ["other/chat", "other/pairs", "talks/chat"], "and not what pairs were made of: feedback"
    found = leaks_of(learned(read()), tables_under(Path("data")))
    assert {leak.table: leak.rows for leak in found} == {"other/chat": 2, "other/pairs": 3, "talks/chat": 1}
    assert {leak.against for leak in found} == {"held/prompts"}
    page = str(health_list({}, found))
    assert "other/chat: 2 training rows have the question of a test prompt of held/prompts" in page


def test_a_text_of_a_corpus_that_holds_a_test_prompt_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """A template had put the question and its answer into one text."""
    put("test.jsonl", [*TESTS, {"prompt": "Why?", "answer": "so"}])
    texts = [f"{asked(1).upper()}  five", f"Question: {asked(2)} Answer: 5", "Why? Nobody knows.", *OTHERS]
    put("corpus.jsonl", [{"text": text} for text in texts])
    made("mine", corpus="corpus.jsonl", prompts="test.jsonl")
    said = capsys.readouterr().err
    assert "mine/corpus: 2 training texts hold a test prompt of mine/prompts" in said, "and not the short question"


def test_case_is_folded_as_unicode_does(capsys: pytest.CaptureFixture[str]) -> None:
    """ß is SS in capitals; the filter that the line names finds the same rows."""
    roads = [f"Wie weit ist es von der Straße {n} bis zum Schloß?" for n in range(30)]
    put("test.jsonl", [{"prompt": road, "answer": "5"} for road in roads])
    put("chat.jsonl", chat([*(road.upper() for road in roads[:3]), *OTHERS]))
    made("mine", chat="chat.jsonl", prompts="test.jsonl")
    assert "mine/chat: 3 training rows have the question of a test prompt of mine/prompts" in capsys.readouterr().err
    small, capital = (grams(pl.Series([text]), 3).values.tolist() for text in (roads[0], roads[0].upper()))
    assert small == capital
