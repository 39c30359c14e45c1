"""What types each run of params.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.runs.sft import SftRun
from posttrain.pipeline.runs.typed import ALGORITHMS, MODELS, load_settings, settings_of
from posttrain.pipeline.toy_tasks.arithmetic.task import ArithmeticParams
from posttrain.supervised.preference import PreferenceTraining

TEXT = """
sft: {runs: {a: {start: base/a, data: mine/chat}}}
data: {tasks: {t: {task: sums, most: 4}}}
"""


def test_groups() -> None:
    assert MODELS["sft.runs"] is SftRun and "preference.runs" in ALGORITHMS and "evaluate.lm_eval" not in ALGORITHMS


def test_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = {"start": "base/a", "data": "mine/chat"}
    assert settings_of("sft.runs", own, "a") == SftRun(**own)
    dpo = settings_of("preference.runs", {**own, "algorithm": "dpo", "data": "mine/pairs"}, "a")
    assert isinstance(dpo, PreferenceTraining) and dpo.algorithm == "dpo"
    with pytest.raises(ParamsError, match="start"):
        settings_of("sft.runs", None, "a")
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(TEXT)
    assert load_settings("sft.runs", "a") == SftRun(**own)
    assert load_settings("data.tasks", "t") == ArithmeticParams(most=4)
