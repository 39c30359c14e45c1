"""The flow that a host serves."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from flows.stage import stage

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_clone_at_another_commit_fails_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["init", "-q"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a", "--allow-empty"]):
        subprocess.run(["git", *words], check=True)
    state = stage.fn("sft@main", "0" * 40)
    assert state.is_failed()
    assert "but the flow is at 000000000000" in state.message
