"""Data that git does not keep: copied into experiments where nobody tracks it, and known to flows once DVC does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.graph import read
from flows.untracked import untracked_inputs
from tests.flows.project import Project

READER = """
  reader:
    cmd: cat my/rows.txt > read.txt
    deps: [my/rows.txt]
    outs: [read.txt]
"""


@pytest.fixture
def owner(bare: Project, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project with a stage that reads a file of the user's, in a folder that nobody tracks."""
    (bare.root / "dvc.yaml").open("a").write(READER)
    (bare.root / ".gitignore").write_text("/read.txt\n.prefect/\nseen/\n/.sweeps/\ntrouble.json\n")
    commit(bare, "dvc.yaml", ".gitignore")
    (bare.root / "my").mkdir()
    (bare.root / "my/rows.txt").write_text("one\n")
    (bare.root / "my/notes").mkdir()
    monkeypatch.chdir(bare.root)
    return bare


def commit(project: Project, *files: str) -> None:
    subprocess.run(["git", "add", *files], cwd=project.root, check=True)
    subprocess.run(["git", "commit", "-qm", "more"], cwd=project.root, check=True)


def experiment(project: Project, *words: str) -> str:
    command = [sys.executable, "-m", "dvc", "exp", "run", "--temp", "-n", f"e{len(words)}", *words, "reader"]
    done = subprocess.run(command, cwd=project.root, env=project.env, capture_output=True, text=True)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("params", "found"),
    [
        ({"path": "my/rows.txt"}, ["my"]),
        ({"runs": [{"path": "./my/../my"}]}, ["my"]),
        ({"path": "sub"}, ["sub/mine.csv"]),
        ({"path": "sub/dvc.yaml"}, []),
        ({"path": "seen/a"}, ["seen"]),
        ({"a": "", "b": ".", "c": "/tmp", "d": "..", "e": 3, "f": "no\0pe", "g": "x" * 5000, "h": "lost"}, []),
    ],
)
def test_what_a_parameter_names_and_nobody_tracks_is_found(
    owner: Project, params: dict[str, Any], found: list[str]
) -> None:
    (owner.root / "sub/mine.csv").write_text("a\n")
    (owner.root / "seen").mkdir()
    (owner.root / "seen/a").write_text("ignored by git, and so in no copy either")
    assert untracked_inputs([params]) == found


@pytest.mark.slow
def test_an_experiment_gets_a_copy_of_it(owner: Project) -> None:
    assert "my/rows.txt" in experiment(owner), "DVC's copy lacks it"
    copies = [f"--copy-paths={path}" for path in untracked_inputs([{"path": "my/rows.txt"}])]
    assert experiment(owner, *copies) == ""


@pytest.mark.slow
def test_what_dvc_add_tracks_is_in_every_copy_and_known_to_flows(owner: Project) -> None:
    owner.dvc("add", "my")
    commit(owner, "my.dvc", ".gitignore")
    assert untracked_inputs([{"path": "my/rows.txt"}]) == []
    assert experiment(owner) == ""
    names = [stage.name for stage in read(Path.cwd(), ["reader"])]
    assert names == ["my.dvc", "reader"]


@pytest.mark.slow
def test_a_flow_notices_a_change_of_what_was_added(owner: Project, server_env: dict[str, str]) -> None:
    project = Project(owner.root, {**owner.env, **server_env, "PREFECT_HOME": str(owner.root / ".prefect")})
    project.dvc("add", "my")
    assert project.run("reader").states == {"my.dvc": "Cached", "reader": "Completed"}
    (project.root / "my/rows.txt").write_text("two\n")
    changed = project.run("reader")
    assert changed.states == {"my.dvc": "Completed", "reader": "Completed"}, changed.err
    assert (project.root / "read.txt").read_text() == "two\n"
    assert set(project.run("reader").states.values()) == {"Cached"}
