"""`posttrain clean`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.commands.line import parse, run

NOTHING = "nothing is left of removed runs: every entry of dvc.lock belongs to a run of params.yaml"


def test_leftovers_are_listed_or_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    Path("custom").mkdir()
    Path("params.yaml").write_text("data: {tasks: {toy: {task: two_step}}}\n")
    Path("dvc.lock").write_text(json.dumps({"schema": "2.0", "stages": {"sft@old": {"cmd": "a"}}}))
    assert run(parse(["clean", "--list"])) == "left of sft@old: its entry in dvc.lock"
    assert run(parse(["clean"])) == "removed sft@old: its entry in dvc.lock"
    assert run(parse(["clean"])) == run(parse(["clean", "--list"])) == NOTHING
    assert run(parse(["clean", "checkpoints"])).startswith("nothing to remove")
