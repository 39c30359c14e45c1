"""New and changed data files."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.data_watcher import FolderWatcher, project_path, resource_id, take_snapshot
from posttrain.errors import PipelineError


def test_names(tmp_path: Path) -> None:
    assert project_path(tmp_path, tmp_path / "my/data") == Path("my/data")
    assert project_path(tmp_path / "a", tmp_path / "b") == tmp_path / "b"
    assert resource_id(Path("my/data")) == "posttrain.data.my/data"


def test_a_file_counts_once_it_stays_the_same(tmp_path: Path) -> None:
    watcher = FolderWatcher(tmp_path)
    file = tmp_path / "a.jsonl"
    file.write_text("a")
    for name in (".hidden", "b.tmp", "c.jsonl~"):
        (tmp_path / name).write_text("")
    assert list(take_snapshot(tmp_path)) == [file] and take_snapshot(tmp_path)[file][0] == 1
    assert watcher.changed() == [] and watcher.changed() == [file] and watcher.changed() == []
    file.write_text("ab")
    assert watcher.changed() == [] and watcher.changed() == [file]
    with pytest.raises(PipelineError, match="folder not found"):
        FolderWatcher(tmp_path / "none")
