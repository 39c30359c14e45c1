"""Plugins that are not installed, in the stage `code`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.runs.code import _refuse_missing_plugins, _unreadable

PARAMS = """
sft: {runs: {right: {start: base/a, data: b/chat}, wrong: {start: base/a, data: b/chat, epochs: x}}}
evaluate: {settings: {data: b/prompts, reference: none, reward_model: none}, policies: {a: base/a}}
"""
GONE = {"files": {}, "packages": {"gone-reward": "1.2 sha256:0123456789abcdef"}}


@pytest.fixture(autouse=True)
def inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(PARAMS)


def test_settings_that_cannot_be_read_are_told() -> None:
    assert _unreadable("sft.runs", "right", shared=False) is None
    assert _unreadable("evaluate.policies", "a", shared=True) is None
    wrong = _unreadable("sft.runs", "wrong", shared=False)
    assert wrong is not None and "epochs" in wrong.what


def test_only_a_run_that_needs_a_package_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("right", "wrong"):
        Path("code/sft").mkdir(parents=True, exist_ok=True)
        Path(f"code/sft/{name}.json").write_text(json.dumps(GONE))
        if name == "right":
            _refuse_missing_plugins()
            said = "note: code/sft/right.json no longer names the package gone-reward 1.2: no setting needs it\n"
            assert capsys.readouterr().err == said
    with pytest.raises(PipelineError, match=r"sft\.runs\.wrong cannot be read, because the package gone-reward 1\.2"):
        _refuse_missing_plugins()
