"""What runs in lm-eval's environment: its metrics and documents as plain data."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.plugins.lm_eval import lm_eval_child as module

SAMPLE = {
    "doc_id": 0, "filter": "none", "target": "4", "arguments": [["2+2?", {"until": []}]], "resps": [["four: 4"]],
    "filtered_resps": ["4"], "metrics": ["exact_match", "text"], "exact_match": 1.0, "text": "no number",
}  # fmt: skip
ROW = {
    "task": "sums", "doc": 0, "filter": "none", "prompt": "2+2?", "target": "4", "response": "four: 4", "read": "4",
    "scores": {"exact_match": 1.0},
}  # fmt: skip
ASKED: dict[str, Any] = {
    "date": "2024-05-01", "threads": 1, "deterministic": False, "include": None, "model": "m", "dtype": "float32",
    "num_fewshot": None, "limit": 2, "batch": 1, "device": "cpu", "chat": False,
}  # fmt: skip


def test_documents_have_a_row_for_each_answer() -> None:
    assert list(module._documents("sums", [SAMPLE])) == [ROW]
    several = {**SAMPLE, "resps": [["a", "b"]], "target": 4}
    (row,) = module._documents("sums", [several])
    assert (row["response"], row["target"]) == ('["a", "b"]', "4")
    choices = {**SAMPLE, "arguments": [["2+2?", " 4"], ["2+2?", " 5"]], "filtered_resps": [[-0.5, True], [-2.0, False]]}
    (row,) = module._documents("sums", [choices])
    assert (row["response"], row["read"]) == ('[[" 4", -0.5, true], [" 5", -2.0, false]]', "")


def test_figures_are_named_by_task_and_reader() -> None:
    results = {"sums": {"acc,none": 0.5, "acc,strict": 1, "alias": "sums", "acc_stderr,none": "N/A"}}
    assert list(module._figures(results)) == [("sums.acc", 0.5), ("sums.acc,strict", 1.0)]


def test_texts_and_numbers() -> None:
    assert module._is_number(1) is True and module._is_number("1") is False and module._is_number(float("nan")) is False
    assert module._text("a") == "a" and module._text(["ä", 1]) == '["ä", 1]'


def test_templates_write_one_date(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.utils import chat_template_utils

    monkeypatch.setattr(chat_template_utils, "datetime", chat_template_utils.datetime)
    module._fix_date("2024-05-01")
    assert chat_template_utils.datetime.now().strftime("%d %b %Y") == "01 May 2024"
