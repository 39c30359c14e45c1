"""The runs that have read a row."""

from __future__ import annotations

from typing import Any

from posttrain.pipeline.lineage.runs import affected, model_made


def entry(*deps: tuple[str, str], outs: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"deps": [{"path": path, "md5": md5} for path, md5 in deps], "outs": [{"path": path} for path in outs]}


LOCK = {
    "data_files@a": entry(("my/a.jsonl", "1"), outs=("data/a",)),
    "data_files@b": entry(("my/b.jsonl", "9"), outs=("data/b",)),
    "sft@a": entry(("data/a/chat.parquet", "2"), outs=("models/sft/a",)),
    "sft@b": entry(("data/b/chat.parquet", "8"), outs=("models/sft/b",)),
    "evaluate@a": entry(("models/sft/a", "3"), outs=("results/a",)),
}


def test_the_model_of_a_stage() -> None:
    assert model_made("online@grpo") == "online/grpo" and model_made("base_scratch@a") == "base/a"
    assert model_made("evaluate@a") is None and model_made("report") is None


def test_runs_are_affected_through_files_and_models() -> None:
    found = affected(LOCK, {"2"}, ["my/a.jsonl"])
    assert found == {
        "data_files@a": "my/a.jsonl", "sft@a": "data/a/chat.parquet", "evaluate@a": "models/sft/a",
    }  # fmt: skip
    assert affected(LOCK, set(), ["my/a.jsonl"]) == {"data_files@a": "my/a.jsonl"}, "a table is judged by its content"
    assert affected(LOCK, set(), []) == {}
