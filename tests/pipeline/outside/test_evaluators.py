"""Evaluators by name, and their documents as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.data.columns import COLUMNS
from posttrain.errors import ParamsError
from posttrain.pipeline.outside.evaluators import EVALUATORS, documents_table, evaluator_of, whole


def test_evaluator_of() -> None:
    pytest.importorskip("posttrain.plugins.lm_eval")
    assert evaluator_of({}, "a") is evaluator_of(None, "a") is EVALUATORS["lm_eval"]
    assert evaluator_of({"evaluator": "lm_eval"}, "a") is EVALUATORS["lm_eval"]
    with pytest.raises(ParamsError, match="'other' is unknown"):
        evaluator_of({"evaluator": "other"}, "a")


def test_documents() -> None:
    row = {"task": "t", "doc": 1, "filter": "f", "prompt": "p", "target": "x", "response": "r", "read": "x"}
    table = documents_table([{**row, "scores": {"acc": 0.5}}])
    assert table.columns == list(COLUMNS["documents"]) and len(table["id"][0]) == 16
    assert table["scores"].to_list() == [[{"name": "acc", "value": 0.5, "status": "ok"}]]


def test_a_whole_model_is_its_own_folder(tmp_path: Path) -> None:
    with whole(tmp_path) as folder:
        assert folder == tmp_path
