"""`posttrain repair`."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.pipeline.commands.line import parse, run
from posttrain.pipeline.lock.verify import verify
from tests.pipeline.lock import project


def test_each_action_says_what_it_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project.make(tmp_path)
    assert run(parse(["repair"])) == "nothing to repair"
    assert run(parse(["repair", "sync"])) == "dvc.lock and DVC's cache are on the disk"
    assert run(parse(["repair", "merge"])) == "dvc.lock has no merge conflict"
    assert run(parse(["repair", "verify"])) == verify(tmp_path)
    trial = tmp_path / "data/.0123456789012345678_-z.tmp"
    trial.touch()
    assert run(parse(["repair"])) == f"data/{trial.name} was left by a DVC that was killed: removed"
