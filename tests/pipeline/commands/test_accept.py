"""`posttrain accept`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.commands.line import parse, run
from tests.pipeline.lock import project


def test_a_change_of_the_code_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project.make(tmp_path)
    project.put(tmp_path / "code/mine/main.json", json.dumps({**project.CODE, "files": {"posttrain/a.py": "1"}}))
    said = run(parse(["accept", "mine@main", "--reason", "a comment"]))
    assert said == "mine@main: accepted: posttrain/a.py is used now"
    assert json.loads(project.RECORD.read_text())["accepted"][0]["reason"] == "a comment"
