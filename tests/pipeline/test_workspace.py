"""The paths of a workspace."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from posttrain.pipeline import workspace
from posttrain.pipeline.workspace import DONE, ROOT_VARIABLE


def test_paths() -> None:
    assert workspace.model_path("online@grpo") == Path("models/online/grpo")
    assert workspace.table_path("two_step/chat") == Path("data/two_step/chat.parquet")
    assert workspace.metrics_path("online@grpo") == Path("metrics/online/grpo.json")
    assert workspace.plot_path("online@grpo") == Path("plots/online/grpo.csv")
    assert workspace.rollouts_path("online@grpo") == Path("rollouts/online/grpo")
    assert workspace.failure_path("online/grpo") == Path(".dvc/tmp/failures/online@grpo.txt")


def test_the_main_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ROOT_VARIABLE, raising=False)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    assert workspace.main_root() == Path() and workspace.checkpoint_path("sft@a") == Path("checkpoints/sft/a")
    monkeypatch.setenv("DVC_ROOT", str(tmp_path))
    assert workspace.main_root() == tmp_path and workspace.cache_path() is None
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    assert workspace.cache_path() == tmp_path / ".dvc/tmp"
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "main"))
    assert workspace.checkpoint_path("sft@a") == tmp_path / "main/checkpoints/sft/a"


def test_outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("inside").mkdir()
    assert not workspace.any_outside("inside") and workspace.any_outside("/etc/hostname")
    Path("inside/link").symlink_to("/etc/hostname")
    assert workspace.any_outside("inside")


def test_checkpoints_of_recorded_runs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_ROOT", raising=False)
    Path("plot.csv").write_text("step\n")
    digest = workspace.recorded_digest(Path("plot.csv"))
    assert digest == f"md5: {hashlib.md5(b'step' + bytes([10])).hexdigest()}"
    for run in ("a", "b"):
        Path("checkpoints/sft", run).mkdir(parents=True)
    Path("checkpoints/sft/a", DONE).write_text(digest)
    Path("checkpoints/sft/b", DONE).write_text("md5: other")
    Path("dvc.lock").write_text(f"outs: {digest}")
    workspace.remove_committed()
    assert [path.name for path in Path("checkpoints/sft").iterdir()] == ["b"]
