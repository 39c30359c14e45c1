"""Experiments start from the workspace as it was at the start of their sweep, with the settings that they ask for."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from flows.sweep_start import Start, write_params
from posttrain.errors import PipelineError
from posttrain.pipeline.lock.git import git

PARAMS = """\
# of mine
online:
  runs:
    a: {reward: {"mine:f": 1.0}, lr: 1e-3}  # a comment
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A committed workspace below the root of its repository."""
    place = tmp_path / "with space" / "sub"
    (place / ".dvc").mkdir(parents=True)
    monkeypatch.chdir(place)
    for words in (["init", "-q", ".."], ["config", "user.email", "a@example.com"], ["config", "user.name", "A"]):
        git(*words)
    Path(".dvc/config").write_text("[core]\n    analytics = false\n")
    Path(".dvc/.gitignore").write_text("/config.local\n/tmp\n/cache\n")
    Path("params.yaml").write_text(PARAMS)
    Path("custom").mkdir()
    Path("custom/mine.py").write_text("f = 1\n")
    Path("custom/gone.py").write_text("g = 1\n")
    git("add", "-A")
    git("commit", "-qm", "begin")
    return place


def test_a_clone_has_what_was_there_at_the_start_and_nothing_in_the_workspace_moves(root: Path) -> None:
    Path("custom/mine.py").write_text("f = 2\n")  # not committed
    Path("custom/gone.py").unlink()
    Path("staged.py").write_text("h = 1\n")
    git("add", "staged.py")
    before = git("status", "--porcelain"), git("rev-parse", "HEAD"), Path("../.git/index").read_bytes()
    start = Start.of(root)
    Path("custom/mine.py").write_text("f = 3\n")  # edited while the sweep runs
    with start.cloned({"online.runs.a.lr": 0.5}) as clone:
        assert (clone / "custom/mine.py").read_text() == "f = 2\n"
        assert not (clone / "custom/gone.py").exists()
        assert "lr: 0.5" in (clone / "params.yaml").read_text()
        assert git("-C", str(clone), "rev-parse", "HEAD").strip() == start.baseline
        top = clone
    assert not top.exists()
    Path("custom/mine.py").write_text("f = 2\n")
    assert (git("status", "--porcelain"), git("rev-parse", "HEAD"), Path("../.git/index").read_bytes()) == before


def test_a_stage_whose_outputs_are_not_on_this_machine_is_left_to_the_run_cache(root: Path) -> None:
    """As in a fresh clone, where DVC takes the entry for done and then cannot load the folder."""
    held, lost = (hashlib.md5(name.encode()).hexdigest() for name in ("held", "lost"))
    folder = b'[{"md5": "%s", "relpath": "x"}]' % lost.encode()
    listed = f"{hashlib.md5(folder).hexdigest()}.dir"
    for digest, content in ((held, b"held"), (listed, folder)):
        place = root / ".dvc/cache/files/md5" / digest[:2] / digest[2:]
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    entries = {"here": ("a.txt", held), "lost": ("b.txt", lost), "part": ("c", listed), "in_git": ("params.yaml", lost)}
    outs = {name: {"cmd": "true", "outs": [{"path": path, "md5": md5}]} for name, (path, md5) in entries.items()}
    with Path("dvc.lock").open("w") as file:
        YAML(typ="safe", pure=True).dump({"schema": "2.0", "stages": outs}, file)
    git("add", "dvc.lock")
    git("commit", "-qm", "lock")
    with Start.of(root).cloned({}) as clone:
        lock = YAML(typ="safe").load((clone / "dvc.lock").read_text())
    assert lock["schema"] == "2.0" and list(lock["stages"]) == ["here", "in_git"]


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ({"online.runs.a.lr": 0.5}, '    a: {reward: {"mine:f": 1.0}, lr: 0.5} # a comment'),
        (
            {"online.runs.a.rollout.rows": 8},
            '    a: {reward: {"mine:f": 1.0}, lr: 1e-3, rollout: {rows: 8}} # a comment',
        ),
        (
            {"online.runs.a.task": "other.x:Y"},
            '    a: {reward: {"mine:f": 1.0}, lr: 1e-3, task: "other.x:Y"} # a comment',
        ),
        ({"online.runs.a.task": "sums"}, '    a: {reward: {"mine:f": 1.0}, lr: 1e-3, task: sums} # a comment'),
        (
            {"online.runs.a.reward": {"mine:f": 1.0, "b": ["c:d"]}},
            '    a: {reward: {"mine:f": 1.0, b: ["c:d"]}, lr: 1e-3} # a comment',
        ),
    ],
)
def test_settings_are_written_so_that_dvc_can_read_them(overrides: dict[str, Any], line: str, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(PARAMS)
    write_params(file, overrides)
    assert file.read_text().splitlines()[-1].split() == line.split() and file.read_text().startswith("# of mine\n")
    assert YAML(typ="safe").load(file.read_text())["online"]["runs"]["a"]["reward"]["mine:f"] == 1.0


def test_settings_that_an_alias_shares_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text("a: &x {lr: 1}\nb: *x\n")
    with pytest.raises(PipelineError, match="without anchors"):
        write_params(file, {"a.lr": 2})
    assert file.read_text() == "a: &x {lr: 1}\nb: *x\n"


def test_an_experiment_is_brought_into_the_workspace(root: Path) -> None:
    start = Start.of(root)
    ref = f"refs/exps/{start.baseline[:2]}/{start.baseline[2:]}/one"
    with start.cloned({}) as clone:
        subprocess.run(["git", "update-ref", ref, start.commit], cwd=clone, check=True)
        start.take(clone, "one")
    assert git("rev-parse", ref).strip() == start.commit
