"""Which objects of DVC's cache belong to an output."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from dvc.config import Config

from posttrain.pipeline.lock.digests import boot
from posttrain.pipeline.lock.fsync import SYNCED, cache_folder, cached, object_path, sync_cache


def test_paths(tmp_path: Path) -> None:
    assert object_path(tmp_path, "abcd") == tmp_path / "ab/cd"
    (tmp_path / ".dvc").mkdir()
    assert cache_folder(tmp_path) == tmp_path / ".dvc/cache/files/md5"
    (tmp_path / ".dvc/config").write_text("[cache]\n    dir = /other\n")
    assert cache_folder(tmp_path) == Path("/other/files/md5")


@pytest.mark.parametrize("place", [".dvc/config", ".dvc/config.local", "global/config", "system/config"])
@pytest.mark.parametrize(
    "written", ["[cache]\n    dir = /other\n", "[cache]\n\t'dir' = /other\n", "[cache]\ndir=/other"]
)
def test_dvc_is_asked_where_any_of_its_files_names_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, written: str
) -> None:
    for level in ("global", "system"):
        (tmp_path / level).mkdir()
        monkeypatch.setenv(f"DVC_{level.upper()}_CONFIG_DIR", str(tmp_path / level))
    (tmp_path / ".dvc").mkdir()
    (tmp_path / ".dvc/config").write_text("[cache]\n    type = copy\n[core]\n    analytics = false\n")
    assert cache_folder(tmp_path) == tmp_path / ".dvc/cache/files/md5"
    (tmp_path / place).write_text(written)
    assert (
        cache_folder(tmp_path)
        == Path("/other/files/md5")
        == Path(Config(str(tmp_path / ".dvc"))["cache"]["dir"], "files/md5")
    )


def test_cached(tmp_path: Path) -> None:
    (tmp_path / "ab").mkdir()
    (tmp_path / "ab/cd.dir").write_text(json.dumps([{"md5": "1234", "relpath": "a"}]))
    assert list(cached(tmp_path, {"md5": "ffff"})) == [tmp_path / "ff/ff"]
    assert list(cached(tmp_path, {"md5": "abcd.dir"})) == [tmp_path / "ab/cd.dir", tmp_path / "12/34"]
    assert list(cached(tmp_path, {})) == []


def test_a_sync_is_stamped_with_the_boot(tmp_path: Path) -> None:
    sync_cache(tmp_path)
    assert not (tmp_path / ".dvc").exists()
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / "dvc.lock").write_text("{}")
    sync_cache(tmp_path)
    assert (tmp_path / SYNCED).read_text() == boot()
