"""DVC's own files after a kill."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from posttrain.errors import PipelineError
from posttrain.pipeline.lock import repair_dvc
from posttrain.pipeline.lock.repair_dvc import (
    COPIES,
    RWLOCKS,
    SITE_CACHE,
    follow_move,
    in_conflict,
    lock_entries,
    repair_lock,
)
from tests.pipeline.lock.project import put

GONE = 2**22 + 1
TRIAL = ".0123456789012345678_-z.tmp"


def holder(pid: int, cmd: str = "dvc repro") -> dict[str, object]:
    return {"pid": pid, "cmd": cmd}


def test_nothing_to_repair(made: Path) -> None:
    assert repair_lock(made) == "" and repair_lock(made) == ""
    assert str(made / SITE_CACHE) in (made / ".dvc/config.local").read_text()
    with pytest.raises(PipelineError, match="no DVC project here"):
        repair_lock(made / "models")


def test_every_repair_is_one_line(made: Path) -> None:
    put(made / "dvc.lock", "schema: [")
    put(made / RWLOCKS[0], "{")
    put(made / "models" / TRIAL, "")
    assert [line.partition(" ")[0] for line in repair_lock(made).splitlines()] == [
        "dvc.lock", ".dvc/tmp/rwlock", f"models/{TRIAL}",
    ]  # fmt: skip


def test_a_damaged_lock_is_set_aside(made: Path) -> None:
    assert repair_dvc._repair_lock_file(made) == ""
    put(made / "dvc.lock", "schema: [")
    line = "dvc.lock was damaged, by a kill while DVC wrote it: set aside as dvc.lock.damaged"
    assert repair_dvc._repair_lock_file(made) == f"{line}; `dvc repro` restores the rest"
    assert (made / "dvc.lock.damaged").read_text() == "schema: [" and not (made / "dvc.lock").exists()
    assert repair_dvc._repair_lock_file(made) == ""


def test_locks_of_dead_processes_are_removed(made: Path) -> None:
    name = RWLOCKS[0]
    assert repair_dvc._repair_rwlock(made, name) == ""
    put(made / name, "{")
    line = f"{name} was damaged, by a kill while DVC wrote it: removed, as it is not needed"
    assert repair_dvc._repair_rwlock(made, name) == line
    own = holder(os.getpid(), f"pytest {psutil.Process().cmdline()[-1]}")
    put(made / name, json.dumps({"read": {"a": [own, holder(GONE)]}, "write": {"b": own}}))
    os.utime(
        made / name, (2**33, 2**33)
    )  # a clock that is set back while tests run would make this process a later one
    line = f"{name} named processes that have ended: {GONE} (dvc repro): removed from it"
    assert repair_dvc._repair_rwlock(made, name) == line
    assert json.loads((made / name).read_text()) == {"read": {"a": [own]}, "write": {"b": own}}
    assert repair_dvc._repair_rwlock(made, name) == ""


def test_a_process_holds_its_lock_while_it_lives() -> None:
    process = subprocess.Popen(["sleep", "300"])
    seen = psutil.Process(process.pid)
    began = seen.create_time()
    try:
        while not seen.cmdline():  # it has none until the program has begun
            time.sleep(0.01)
        assert repair_dvc._holds(holder(process.pid, "dvc 300"), began) is True
        assert repair_dvc._holds(holder(process.pid, "dvc repro"), began) is False
        assert repair_dvc._holds(holder(process.pid, "dvc 300"), began - 1000) is False, "it began later"
    finally:
        process.kill()
        process.wait()
    assert repair_dvc._holds(holder(process.pid, "dvc 300"), began) is False


def test_copies_of_killed_experiments_are_removed(made: Path) -> None:
    assert repair_dvc._remove_copies(made) == []
    (made / COPIES / "tmpa").mkdir(parents=True)
    assert (
        repair_dvc._remove_copies(made) == [f"{COPIES}/tmpa was left by an experiment that was killed: removed"]
        and not (made / COPIES).exists()
    )


def test_a_running_experiment_is_noticed(made: Path) -> None:
    (made / COPIES).mkdir(parents=True)
    for place, words, expected in ((made, ["exp"], True), (made, [], False), (made / COPIES, [], True)):
        command = [sys.executable, "-S", "-c", "print(flush=True); import time; time.sleep(20)", *words]
        with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE) as process:
            assert process.stdout and process.stdout.readline()
            assert repair_dvc._runs_experiment(psutil.Process(process.pid), made) is expected
            process.kill()


def test_link_tests_of_dvc_are_removed(made: Path) -> None:
    young, old, other = (
        made / path for path in (f".dvc/cache/{TRIAL}", f".dvc/cache/files/md5/{TRIAL}", "data/.a.tmp")
    )
    for file in (young, old, other, made / "data" / TRIAL):
        put(file, "")
    os.utime(old, (1, 1))
    said = "was left by a DVC that was killed: removed"
    assert repair_dvc._remove_link_tests(made) == [f"data/{TRIAL} {said}", f".dvc/cache/files/md5/{TRIAL} {said}"]
    assert young.exists() and other.exists() and not old.exists()


def test_the_site_cache_follows_a_move(made: Path) -> None:
    local = made / ".dvc/config.local"
    follow_move(made)
    assert not local.exists()
    put(local, f"[core]\n    site_cache_dir = /old/place/{SITE_CACHE}\n")
    follow_move(made)
    assert str(made / SITE_CACHE) in local.read_text() and "/old/place" not in local.read_text()
    assert repair_dvc._site_cache(made) == made / SITE_CACHE


def test_a_folder_with_other_letters_has_its_site_cache_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    found = repair_dvc._site_cache(Path("/größer"))
    assert found.parent == Path("/cache/posttrain/site") and len(found.name) == 32
    monkeypatch.setenv("XDG_CACHE_HOME", "/größer")
    with pytest.raises(PipelineError, match="DVC needs a cache folder whose path is ASCII"):
        repair_dvc._site_cache(Path("/größer"))


def test_merge_conflicts(made: Path) -> None:
    assert in_conflict(made / "none") is False and in_conflict(made / "dvc.lock") is False
    put(made / "dvc.lock", "<<<<<<< HEAD\na\n")
    assert in_conflict(made / "dvc.lock") is True
    assert repair_dvc._repair_lock_file(made) == "", "a person must resolve it"


def test_the_entries_of_a_lock() -> None:
    stages = {"a": {"cmd": "c", "outs": [{"path": "b", "md5": "1" * 32}]}}
    assert lock_entries(json.dumps({"schema": "2.0", "stages": stages}).encode()) == stages
    assert lock_entries(b'schema: "2.0"\n') == {}
    for text in (b"schema: [", b"[1]", b"\xff\xfe\xfd"):
        assert lock_entries(text) is None
    stages["a"]["outs"][0]["hash"] = "no-such-hash"
    assert lock_entries(json.dumps({"schema": "2.0", "stages": stages}).encode()) is None
