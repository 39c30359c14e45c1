"""`posttrain status`."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.pipeline.commands.line import parse, run
from tests.pipeline.lock import project


def test_what_has_to_run_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    project.make(tmp_path)
    assert run(parse(["status"])) == "nothing is stale"
    project.put(tmp_path / "dvc.yaml", project.DVC_YAML.replace("make last", "make it"))
    assert run(parse(["status"])).splitlines() == ["last: its command changed", "2 of 3 stages are done"]
