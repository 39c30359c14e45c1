"""What a host refuses before it runs a stage."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from flows.hosts import run_stage
from posttrain.errors import PipelineError


def git(*words: str) -> str:
    return subprocess.run(["git", *words], check=True, capture_output=True, text=True).stdout


def commit(files: dict[str, str]) -> str:
    """Commit the files and return the commit."""
    for name, text in files.items():
        Path(name).write_text(text)
    git("add", "--all")
    git("commit", "-qm", "next")
    return git("rev-parse", "HEAD").strip()


@pytest.fixture
def commits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two commits, of which the clone has the first and the coordinator the second."""
    monkeypatch.chdir(tmp_path)
    git("init", "-q", "-b", "main")
    git("config", "user.email", "a@example.com")
    git("config", "user.name", "A")
    first = commit({"params.yaml": "a: 1", "dvc.lock": "stages: {}"})
    second = commit({"dvc.lock": "stages: {a: {}}"})
    git("checkout", "-q", first)
    return [first, second]


def test_the_fix_brings_a_clone_with_its_own_dvc_lock_to_the_commit(commits: list[str]) -> None:
    Path("dvc.lock").write_text("stages: {b: {}}")
    with pytest.raises(PipelineError) as refused:
        run_stage(Path.cwd(), "a", commits[1], None)
    command = re.search(r"git checkout .*", refused.value.fix)
    assert command is not None
    subprocess.run(command[0].split(), check=True, capture_output=True)
    assert git("rev-parse", "HEAD").strip() == commits[1]
    assert Path("dvc.lock").read_text() == "stages: {a: {}}"


@pytest.mark.parametrize("number", [0, 1])
def test_a_clone_with_other_settings_is_refused(commits: list[str], number: int) -> None:
    Path("params.yaml").write_text("a: 2")
    with pytest.raises(PipelineError, match=r"changed since the last commit: params\.yaml"):
        run_stage(Path.cwd(), "a", commits[number], None)
