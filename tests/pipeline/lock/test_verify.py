"""DVC's cache and records, compared with the disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from dvc.stage.cache import _get_cache_hash
from dvc.utils.serialize import dumps_yaml

from posttrain.errors import PipelineError
from posttrain.pipeline.lock import verify as module
from posttrain.pipeline.lock.digests import Digests, read_lock
from posttrain.pipeline.lock.fsync import cache_folder
from posttrain.pipeline.lock.verify import repair, verify
from tests.pipeline.lock.project import cache, md5, put

WHOLE = "4 objects in DVC's cache and 4 outputs of dvc.lock are as they were recorded"


def outs(root: Path) -> list[dict[str, object]]:
    return [
        {"path": out["path"], "md5": out["md5"], "stage": name, "cached": out["path"] != "last.txt"}
        for name, entry in read_lock(root).items()
        for out in entry["outs"]
    ]


def test_a_whole_workspace(made: Path) -> None:
    assert repair(made) == ""
    assert verify(made) == WHOLE


def test_damage_is_named_and_restored(made: Path) -> None:
    cache(made, md5("raw")).write_text("rew")
    with pytest.raises(PipelineError) as raised:
        verify(made)
    name = md5("raw")
    assert f"DVC's cache, {name} (data/raw.txt of raw): it was damaged, copied again from the workspace" in str(
        raised.value
    )
    assert verify(made) == WHOLE
    put(made / "last.txt", "")
    (made / "data/raw.txt").unlink()
    with pytest.raises(PipelineError) as raised:
        verify(made)
    for line in (
        "last.txt of last is empty",
        "data/raw.txt of raw is missing: `dvc checkout data/raw.txt` restores it",
    ):
        assert line in str(raised.value)


def test_a_lock_in_conflict_is_left_to_a_person(made: Path) -> None:
    put(made / "dvc.lock", "<<<<<<< HEAD\na\n")
    assert repair(made) == ""
    put(made / "data/.0123456789012345678_-z.tmp", "")
    assert repair(made) == "data/.0123456789012345678_-z.tmp was left by a DVC that was killed: removed"


def test_what_a_power_cut_emptied_is_removed(made: Path) -> None:
    cache(made, md5("raw")).write_text("")
    empty = cache(made, md5(""))
    put(empty, "")
    runs = made / ".dvc/cache/runs"
    put(runs / "ab/abc/def", "")
    names = [path.relative_to(made) for path in (cache(made, md5("raw")), runs / "ab/abc/def")]
    assert module._remove_emptied(made, runs) == [f"{name} was emptied by a power cut: removed" for name in names]
    assert empty.is_file() and not (runs / "ab/abc").exists()
    put(made / ".dvc/tmp/checked_boot", "another boot")
    cache(made, md5("weights")).write_text("")
    assert "was emptied by a power cut: removed" in repair(made)


def test_damaged_objects_are_removed(made: Path) -> None:
    folder = cache_folder(made)
    assert len(module._objects(folder)) == 4 and module._remove_damaged(folder) == ([], 4)
    cache(made, md5("raw")).write_text("rew")
    assert module._remove_damaged(folder) == ([cache(made, md5("raw"))], 4)
    assert cache(made, md5("raw")) not in module._objects(folder)


def test_damaged_entries_of_the_run_cache_are_removed(tmp_path: Path) -> None:
    entry = {"cmd": "c", "deps": [{"path": "a", "md5": "1"}], "outs": [{"path": "b", "md5": "2"}]}
    good, bad, broken = tmp_path / "ab/abc" / _get_cache_hash(entry), tmp_path / "cd/cde/f", tmp_path / "cd/cde/g"
    for file, text in ((good, dumps_yaml(entry)), (bad, dumps_yaml(entry)), (broken, "[")):
        put(file, text)
    assert module._run_digest(good) == good.name and module._run_digest(broken) == ""
    assert module._remove_damaged_runs(tmp_path) == ["f", "g"]
    assert good.is_file() and not (tmp_path / "cd/cde").exists()


def test_outputs_that_differ_are_touched(made: Path) -> None:
    assert module._touch_changed(made, outs(made), Digests(made)) == []
    put(made / "last.txt", "edited")
    put(made / "data/raw.txt", "")
    (made / "models/mine/main/a.txt").unlink()
    (made / "models/mine/main").rmdir()
    assert module._touch_changed(made, outs(made), Digests(made)) == [
        "data/raw.txt of raw is empty", "last.txt of last is not as recorded",
    ]  # fmt: skip


def test_missing_outputs(made: Path) -> None:
    folder = cache_folder(made)
    assert list(module._missing(made, folder, outs(made))) == []
    (made / "last.txt").unlink()
    cache(made, md5("weights")).unlink()
    cache(made, md5("raw")).unlink()
    (made / "data/raw.txt").unlink()
    assert list(module._missing(made, folder, outs(made))) == [
        "data/raw.txt of raw is missing in DVC's cache and in the workspace",
        "models/mine/main of mine@main is missing in DVC's cache",
        "last.txt of last is missing: `git checkout last.txt` restores it",
    ]


def test_the_outputs_as_dvc_knows_them(made: Path) -> None:
    with module._locked_repo(made) as repo:
        assert sorted(module._outs(repo), key=str) == sorted(outs(made), key=str)
    assert module._recheck_cache(made) == []
