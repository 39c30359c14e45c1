"""Samples of Inspect's logs as a table of ours, read by Inspect itself."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.outside.rollouts.training_rollouts import Rollouts
from posttrain.pipeline.tables.store import read_table
from posttrain.plugins.inspect import inspect_samples
from tests.workspace import ROOT, environment

INSPECT = os.environ.get("POSTTRAIN_INSPECT") or str(ROOT / ".venv-inspect/bin/python")
LOGS = """
import sys
from inspect_ai import Task, eval
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelAPI, ModelOutput, get_model, modelapi
from inspect_ai.scorer import Score, accuracy, includes, mean, scorer
from inspect_ai.solver import generate

said = [("it is 2", "stop"), ("no", "max_tokens"), ("it is 4", "stop"), ("4", "stop")]

@modelapi(name="scripted")
def scripted():
    class Scripted(ModelAPI):
        async def generate(self, input, tools, tool_choice, config):
            text, why = said.pop(0)
            return ModelOutput.from_content("scripted", text, stop_reason=why)
        async def count_tokens(self, input, config=None):
            return 1
    return Scripted

@scorer(metrics=[mean()])
def judge():
    async def score(state, target):
        return Score(value=float("nan") if "no" in state.output.completion else 0.5)
    return score

@scorer(metrics=[accuracy()])
def breaks():
    async def score(state, target):
        if state.output.completion == "4":
            raise ValueError("the judge is down")
        return Score(value="C" if "it is" in state.output.completion else "N")
    return score

asked = [Sample(input="1+1?", target="2", id="a"), Sample(input="2+2?", target="4", id="b")]
eval(Task(dataset=asked, solver=generate(), scorer=[includes(), judge(), breaks()], epochs=2), log_dir=sys.argv[1],
     model=get_model("scripted/one"), display="none", fail_on_error=False, max_samples=1)
"""


def rows_of(found: Any, tmp_path: Path, weights: dict[str, float] | None = None, prompts: Path | None = None) -> Any:
    rollouts = Rollouts(list(found), weights or {}, "external/theirs", "external.rollouts.theirs")
    rollouts.write(tmp_path / "written", prompts, "")
    return read_table(tmp_path / "written/part-00000.parquet", "training_rollouts"), rollouts


@pytest.mark.inspect
@pytest.mark.slow
@pytest.mark.skipif(shutil.which(INSPECT) is None, reason="Inspect's environment is not there: make env-inspect")
def test_samples_of_inspect_have_a_status_for_each_score(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POSTTRAIN_INSPECT", INSPECT)
    words = [INSPECT, "-c", LOGS, str(tmp_path / "logs")]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    table, _ = rows_of(inspect_samples.read(tmp_path / "logs"), tmp_path, {"includes": 1.0, "breaks": 1.0})
    rows = {row["completion"]: row for row in table.to_dicts()}
    scores = {
        said: {score["name"]: (score["value"], score["status"]) for score in row["scores"]}
        for said, row in rows.items()
    }
    assert scores["it is 2"] == {"includes": (1.0, "ok"), "judge": (0.5, "ok"), "breaks": (1.0, "ok")}
    assert scores["no"] == {"includes": (0.0, "ok"), "judge": (None, "error"), "breaks": (0.0, "unparseable")}
    assert set(scores["4"].values()) == {(None, "error")} and rows["4"]["finish"] == "error"
    assert [rows[said]["reward"] for said in ("it is 2", "no", "4")] == [2.0, 0.0, None]
    assert rows["no"]["finish"] == "length" and sorted(table["sample"]) == [0, 0, 1, 1]
    (tmp_path / "logs/other.json").write_text("{}", encoding="utf-8")
    with pytest.raises(DataError, match=r"other.json: Inspect cannot read it \(ValidationError"):
        list(inspect_samples.read(tmp_path / "logs"))
