"""A finished small workspace to stand in."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.report import workspace


@pytest.fixture
def finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The workspace, with the working folder set to it."""
    folder = workspace.make(tmp_path / "finished")
    monkeypatch.chdir(folder)
    return folder
