"""A pipeline in which no stage must run gives the graph that DVC gives, without DVC."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flows.graph import read
from flows.settled import has_other_files, settled


def test_the_graph_is_the_one_that_dvc_reads(smoke_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(smoke_workspace)
    found = settled(Path())
    assert found is not None
    assert found == read(Path(), ())
    assert any(stage.metrics for stage in found) and any(stage.upstream for stage in found)


def test_dvc_is_asked_where_something_changed(own_workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(own_workspace)
    assert settled(Path()) is not None
    for file, text in (("params.yaml", "# a comment\n"), ("posttrain/text/bpe.py", "\nMORE = 1\n")):
        before = Path(file).read_text(encoding="utf-8")
        Path(file).write_text(before + text, encoding="utf-8")
        assert settled(Path()) is None, file
        Path(file).write_text(before, encoding="utf-8")
    assert settled(Path()) is not None
    shutil.rmtree("results/grpo")
    assert settled(Path()) is None


@pytest.mark.parametrize("name", ["data.dvc", "deep/dvc.yaml", "deep/er/table.csv.dvc"])
def test_other_files_of_dvc_are_found(name: str, tmp_path: Path) -> None:
    (tmp_path / "deep/er").mkdir(parents=True)
    (tmp_path / "dvc.yaml").touch()
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config.dvc").touch()
    assert not has_other_files(tmp_path)
    (tmp_path / name).touch()
    assert has_other_files(tmp_path)
