"""The project of `tests/pipeline/lock/project.py`, with the working folder set to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pipeline.lock import project


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project, current in every part."""
    monkeypatch.chdir(tmp_path)
    for name in ("DVC_ROOT", "DVC_STAGE", "POSTTRAIN_ROOT"):
        monkeypatch.delenv(name, raising=False)
    project.make(tmp_path)
    return tmp_path
