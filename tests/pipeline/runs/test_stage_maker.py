"""The maker of a stage's checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.measure.provenance import hardware, is_maker
from posttrain.pipeline.runs.stage_maker import stage_maker
from tests.pipeline.lock.project import CODE


def test_a_maker_has_the_code_and_the_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = stage_maker("theirs@a")
    assert found == {**CODE, "cpu": hardware()} and is_maker(found)
