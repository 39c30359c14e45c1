"""What git refuses is reported with the fix of that mistake, and a project may be a subfolder of its repository."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.compare.experiments import commit, settings_of
from posttrain.pipeline.lock.git import git

USER = ("-c", "user.name=A", "-c", "user.email=a@example.com")


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit, whose user has no name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.delenv(f"GIT_{name}_NAME", raising=False)
        monkeypatch.delenv(f"GIT_{name}_EMAIL", raising=False)
    monkeypatch.delenv("EMAIL", raising=False)
    Path("sub").mkdir()
    Path("sub/params.yaml").write_text("seed: 3\n")
    git("init", "-q")
    git("config", "user.useConfigOnly", "true")
    git("add", "--all")
    subprocess.run(["git", *USER, "commit", "-qm", "begin"], check=True)
    return tmp_path


def test_the_fix_is_that_of_the_mistake(repository: Path) -> None:
    with pytest.raises(PipelineError, match="Name yourself: git config"):
        git("tag", "--annotate", "--message", "text", "one")
    git("tag", "one")
    git("config", "user.name", "A")
    git("config", "user.email", "a@example.com")
    with pytest.raises(PipelineError, match=r"'one' already exists\)\. Do what git says"):
        git("tag", "one")


def test_settings_of_a_project_in_a_subfolder(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir("sub")
    (head,) = commit("HEAD")
    assert settings_of(head) == {"seed": "3"}
