"""The settings of a run of lm-eval, and what is asked and kept of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.outside.evaluators import documents_table
from posttrain.pipeline.outside.tool import Tool
from posttrain.plugins.lm_eval import lm_eval_child
from posttrain.plugins.lm_eval.evaluator import LmEvalRun, measured
from posttrain.settings.params import check
from tests.library.models.tiny import tiny_folder

FOUND: dict[str, Any] = {
    "figures": {"sums.acc": 1.0}, "versions": {"lm_eval": "0.4.13", "torch": "2"},
    "documents": [
        {"task": "sums", "doc": 0, "filter": "none", "prompt": "2+2?", "target": "4", "response": "4", "read": "4",
         "scores": {"acc": 1.0}},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("custom/tasks").mkdir(parents=True)


def run(**given: Any) -> LmEvalRun:
    return check(LmEvalRun, {"policy": "sft/main", "tasks": ["sums"], **given}, where="evaluate.lm_eval.a")


def test_own_tasks_are_in_custom() -> None:
    assert run(include="custom/tasks").include == "custom/tasks" and run().include is None
    for folder, words in (("other", "give a folder in custom/"), ("custom/none", "the folder does not exist")):
        with pytest.raises(ParamsError, match=words):
            run(include=folder)


def test_figures_and_documents_come_from_the_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {}

    def answered(_: Tool, child: Any, given: dict[str, Any], where: str, fix: str, **variables: str) -> dict[str, Any]:
        assert child is lm_eval_child and fix and where == "evaluate.lm_eval.a"
        asked.update(given, **variables)
        return FOUND if given["tasks"] == ["sums"] else {"unknown": ["smus"], "known": ["sums"]}

    monkeypatch.setattr(Tool, "answer", answered)
    model = tiny_folder(tmp_path)
    figures, documents = measured(run(limit=3), model, "evaluate.lm_eval.a")
    assert figures == {"sums.acc": 1.0} and documents.equals(documents_table(FOUND["documents"]))
    assert (asked["limit"], asked["device"], asked["dtype"]) == (3, "cpu", "float32")
    with pytest.raises(ParamsError, match=r"lm-eval has no task 'smus'\. Set the folder of your own task"):
        measured(run(tasks=["smus"]), model, "evaluate.lm_eval.a")
