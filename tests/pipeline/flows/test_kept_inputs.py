"""Data that git does not keep: named where nobody keeps it, and known to experiments and flows once DVC does."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

from flows.graph import read
from posttrain.errors import PipelineError
from posttrain.pipeline.lineage.kept_inputs import _overlap, _overlapping, kept_note, require_kept, unkept_inputs
from tests.pipeline.flows.project import Project

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
        ({"path": "my/rows.txt"}, ["my/rows.txt"]),
        ({"runs": [{"path": "./my/../my"}]}, ["my"]),
        ({"path": "sub"}, ["sub/mine.csv"]),
        ({"path": "sub/dvc.yaml"}, []),
        ({"path": "seen/a"}, ["seen/a"]),
        ({"a": "", "b": ".", "c": "/tmp", "d": "..", "e": 3, "f": "no\0pe", "g": "x" * 5000, "h": "lost"}, []),
    ],
)
def test_what_a_parameter_names_and_nobody_tracks_is_found(
    owner: Project, params: dict[str, Any], found: list[str]
) -> None:
    (owner.root / "sub/mine.csv").write_text("a\n")
    (owner.root / "seen").mkdir()
    (owner.root / "seen/a").write_text("ignored by git, and so in no copy either")
    assert unkept_inputs([params]) == found


@pytest.mark.slow
def test_what_dvc_add_tracks_is_in_every_copy_and_known_to_flows(owner: Project) -> None:
    owner.dvc("add", "my")
    commit(owner, "my.dvc", ".gitignore")
    assert unkept_inputs([{"path": "my/rows.txt"}]) == []
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


def test_what_is_kept_nowhere_is_named(owner: Project) -> None:
    """A file of a reward, a new file of `code`, an edit, and data whose change was not added again."""
    root, named = owner.root, {"reward": {"mine:f": 1.0}, "path": "my"}
    (root / "custom").mkdir()
    for name in ("custom/mine.py", "custom/helper.py", "custom/unused.py"):
        (root / name).write_text("f = 1\n")
    (root / "code/online").mkdir(parents=True)
    listed = {"files": {"custom/mine.py": "1", "custom/helper.py": "2", "posttrain/errors.py": "3"}}
    (root / "code/online/a.json").write_text(json.dumps(listed))
    assert unkept_inputs([named], more=["code"]) == ["code", "custom/helper.py", "custom/mine.py", "my"]
    assert unkept_inputs([named]) == ["custom/helper.py", "custom/mine.py", "my"], "a flow writes code/ itself"
    with pytest.raises(
        PipelineError, match=r"neither in git nor in DVC's cache: custom/helper\.py, .*, my\. .*dvc add my"
    ):
        require_kept("promote", [named])
    owner.dvc("add", "my")
    commit(owner, "my.dvc", ".gitignore", "custom/mine.py", "custom/helper.py", "code")
    assert unkept_inputs([named], more=["code"]) == []
    (root / "custom/helper.py").write_text("f = 2\n")
    (root / "my/rows.txt").write_text("two\n")
    assert unkept_inputs([named], more=["code"]) == ["custom/helper.py", "my"]
    (root / "my/rows.txt").write_text("one\n")
    for file in (root / ".dvc/cache").rglob("*"):
        if file.is_file():
            file.unlink()
    assert unkept_inputs([named]) == ["custom/helper.py", "my"], "the cache has lost it"


def test_a_check_warns_of_it(owner: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (owner.root / "params.yaml").write_text("data: {files: {mine: {path: my, chat: rows.txt}}}")
    commit(owner, "params.yaml")
    assert kept_note().startswith("note: neither in git nor in DVC's cache: my. Other clones lack it; sweeps,")
    commit(owner, "my")
    assert kept_note() == ""
    (tmp_path / "no_repository").mkdir()
    monkeypatch.chdir(tmp_path / "no_repository")
    assert kept_note() == ""


def test_the_name_of_a_column_is_no_input(owner: Project) -> None:
    """`rejected/` holds rows that a stage left out, and pairs have a column `rejected`."""
    (owner.root / "rejected").mkdir()
    (owner.root / "rejected/rows.parquet").write_text("left out")
    renamed = {"chat": {"rename": {"worse": "rejected"}, "values": {"no": "rejected"}}}
    (owner.root / "params.yaml").write_text(json.dumps(renamed))
    assert "rejected" not in unkept_inputs()
    (owner.root / "params.yaml").write_text(json.dumps({"path": "rejected"}))
    assert "rejected" in unkept_inputs()


def test_a_changed_file_of_git_is_not_for_dvc_add(owner: Project) -> None:
    (owner.root / "rows.txt").write_text("one\n")
    commit(owner, "rows.txt")
    (owner.root / "rows.txt").write_text("two\n")
    with pytest.raises(PipelineError, match=r"cache: rows\.txt\. git add rows\.txt, then git commit"):
        require_kept("promote", [{"path": "rows.txt"}])


def test_overlapping_paths_are_those_of_each_pair() -> None:
    rng = random.Random(0)

    def path() -> PurePosixPath:
        return PurePosixPath("/".join(rng.choice("abc") for _ in range(rng.randint(1, 4))))

    for _ in range(500):
        paths, others = [path() for _ in range(rng.randint(0, 6))], {path() for _ in range(rng.randint(0, 5))}
        expected = [one for one in paths if any(_overlap(one, other) for other in others)]
        assert _overlapping(paths, others) == expected
