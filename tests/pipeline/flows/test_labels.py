"""Names and tags of flow runs."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import CreatedBy, FlowRun

from flows.labels import _branch, _name, _started_by

if TYPE_CHECKING:
    from pathlib import Path


def git(root: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q", "-b", "trial")
    (tmp_path / "params.yaml").write_text("online: {runs: {grpo: {seed: 0, kl: {beta: 0.1}, a: 1, b: 1}}}\n")
    git(tmp_path, "add", "-A")
    git(tmp_path, "commit", "-qm", "begin")
    return tmp_path


def test_a_run_is_named_by_its_commit_and_what_changed_since(committed: Path) -> None:
    commit = git(committed, "rev-parse", "--short", "HEAD")
    assert _name(committed, "report") == f"report @ {commit}"
    file = committed / "params.yaml"
    file.write_text("online: {runs: {grpo: {seed: 1, kl: {beta: 0.05}, a: 2, b: 2}}}\n")
    name = f"all @ {commit} grpo.seed=1 kl.beta=0.05 grpo.a=2 and 1 more"
    assert sorted(_name(committed, "all").split()) == sorted(name.split())
    file.write_text("online: [")
    assert _name(committed, "all") == f"all @ {commit}", "the stages say that it cannot be read"


def test_a_folder_without_git_has_no_commit_and_no_branch(tmp_path: Path) -> None:
    assert _name(tmp_path, "report") == "report @ no commit"
    assert _branch(tmp_path) == []


def test_the_branch(committed: Path) -> None:
    assert _branch(committed) == ["trial"]
    git(committed, "checkout", "-q", "--detach")
    assert _branch(committed) == []


def test_who_started_a_run() -> None:
    def run(**given: object) -> FlowRun:
        return FlowRun(flow_id=uuid4(), **given)

    automation = CreatedBy(id=uuid4(), type="AUTOMATION", display_value="a")
    assert _started_by(run()) == "by hand"
    assert _started_by(run(deployment_id=uuid4())) == "by hand"
    assert _started_by(run(deployment_id=uuid4(), auto_scheduled=True)) == "schedule"
    assert _started_by(run(deployment_id=uuid4(), created_by=automation)) == "new data"
