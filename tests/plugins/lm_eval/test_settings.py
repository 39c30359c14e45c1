"""Settings of lm-eval, and what is said where its environment is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import EngineError, ParamsError
from posttrain.pipeline.lock.code_manifest import named_files
from posttrain.pipeline.outside.evaluators import evaluator_of
from posttrain.plugins.lm_eval.evaluator import LM_EVAL, TOOL, LmEvalRun
from posttrain.settings.params import check
from tests.pipeline.report import workspace


def test_a_run_that_names_no_evaluator_is_measured_by_lm_eval() -> None:
    assert evaluator_of({"policy": "sft/main"}, "x") is LM_EVAL is evaluator_of({"evaluator": "lm_eval"}, "x")
    with pytest.raises(ParamsError, match=r"lm_eval\.a\.evaluator: 'lm_evil' is unknown\. Did you mean 'lm_eval'"):
        evaluator_of({"evaluator": "lm_evil"}, "evaluate.lm_eval.a")


@pytest.mark.slow
def test_a_missing_environment_is_named_with_its_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.make(tmp_path))
    monkeypatch.delenv("POSTTRAIN_LM_EVAL", raising=False)
    with pytest.raises(EngineError, match=r"there is no Python at \.venv-lm-eval/bin/python\. .*`make env-lm-eval`"):
        TOOL.python("evaluate.lm_eval.a")


def test_a_folder_of_tasks_is_in_custom_and_counts_as_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "custom/tasks").mkdir(parents=True)
    for name in ("a.yaml", "a.jsonl", "functions.py"):
        (tmp_path / "custom/tasks" / name).write_text("", encoding="utf-8")
    good = {"policy": "sft/main", "tasks": ["a"], "include": "custom/tasks"}
    assert check(LmEvalRun, good, where="x").include == "custom/tasks"
    names = ["a.jsonl", "a.yaml", "functions.py"]
    assert sorted(named_files(good)) == [f"custom/tasks/{name}" for name in names]
    for wrong in ("my/tasks", "custom/../my", "custom/nothing", "custom"):
        with pytest.raises(ParamsError, match=r"x\.include"):
            check(LmEvalRun, {**good, "include": wrong}, where="x")
