"""DVC's index with bytes overwritten: an error that names `posttrain repair`, which removes it; DVC makes it again."""

from __future__ import annotations

import gc
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from flows.graph import read
from posttrain.errors import PipelineError
from posttrain.pipeline.compare.experiments import Experiment, fetch
from posttrain.pipeline.lock.dvc_index import DATABASES
from posttrain.pipeline.lock.repair_dvc import SITE_CACHE, repair_lock
from posttrain.pipeline.lock.status import dvc_repo
from posttrain.pipeline.lock.verify import verify

MAKE = "mkdir -p results/p && seq 3000 > results/p/rollouts.parquet"
GRAPH = f"stages: {{make: {{cmd: '{MAKE}', outs: [results/p/rollouts.parquet]}}}}\n"


def ran(*words: str, env: dict[str, str] | None = None) -> str:
    return subprocess.run(words, capture_output=True, text=True, check=True, env=env).stdout.strip()


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DVC_SITE_CACHE_DIR", raising=False)
    for key, value in {"NAME": "a", "EMAIL": "a@b.c"}.items():
        for of in ("AUTHOR", "COMMITTER"):
            monkeypatch.setenv(f"GIT_{of}_{key}", value)
    ran("git", "init", "--quiet")
    ran(sys.executable, "-m", "dvc", "init", "--quiet")
    repair_lock(tmp_path)  # DVC's site cache is in the project from here on
    Path("dvc.yaml").write_text(GRAPH)
    Path("params.yaml").write_text("evaluate: {policies: {p: base/a}}\n")
    ran(sys.executable, "-m", "dvc", "repro", "--quiet")
    ran("git", "add", ".")
    ran("git", "commit", "--quiet", "--message", "one")
    use_all(tmp_path)
    return tmp_path


def fetched(root: Path) -> None:
    head = ran("git", "rev-parse", "HEAD")
    fetch(Experiment("one", head, head, 0), "p", root / "fetched")


def status(root: Path) -> None:
    with dvc_repo() as repo:
        repo.status()
        repo.data_index.ls((), detail=False)


USES: dict[str, Callable[[Path], object]] = {
    "dvc_repo": status,
    "fetch": fetched,
    "flow": lambda root: read(root, []),
    "repair": verify,
}


def error_of(use: str, root: Path) -> PipelineError | None:
    """Return the error of a way to use DVC; another error than ours is raised."""
    try:
        USES[use](root)
    except PipelineError as error:
        return error
    return None


def use_all(root: Path) -> list[PipelineError]:
    return [error for use in USES if (error := error_of(use, root)) is not None]


def databases(root: Path) -> list[Path]:
    return sorted((root / SITE_CACHE).glob(DATABASES))


def overwrite(file: Path, where: str) -> None:
    """Overwrite bytes of the file in place: its head, or all but the page that says what the tables are."""
    gc.collect()  # closes the connections of earlier uses
    with closing(sqlite3.connect(file)) as database:  # else a connection that is still open may keep all in its journal
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for journal in (file.with_name(f"{file.name}-wal"), file.with_name(f"{file.name}-shm")):
        journal.unlink(missing_ok=True)
    data = bytearray(file.read_bytes())
    part = slice(0, 64) if where == "head" else slice(4096, len(data))
    data[part] = b"\xa5" * len(data[part])
    file.write_bytes(data)


@pytest.mark.parametrize("where", ["head", "pages"])
@pytest.mark.parametrize("name", ["index/data/db.db", "hashes/local/cache.db", "links/cache.db"])
def test_a_damaged_index_is_an_error_with_its_fix_and_repair_removes_it(project: Path, name: str, where: str) -> None:
    assert use_all(project) == [] and repair_lock(project) == ""
    (file,) = [file for file in databases(project) if str(file).endswith(name)]
    overwrite(file, where)
    said = [error for use in ("dvc_repo", "fetch", "flow") if (error := error_of(use, project)) is not None]
    assert said and all("DVC's index cannot be read (" in error.what for error in said)
    assert all(error.fix.startswith("Run `posttrain repair`") for error in said)
    assert repair_lock(project) == f"{file.relative_to(project)} was damaged: removed, DVC makes it again"
    assert not file.exists() and repair_lock(project) == ""
    assert use_all(project) == [] and file.exists(), "DVC has made it again"


ALONE = """
import sys
from pathlib import Path
from posttrain.errors import PipelineError
from tests.pipeline.test_dvc_index import USES
try:
    USES[sys.argv[1]](Path.cwd())
except PipelineError as error:
    print(error)
"""


@pytest.mark.parametrize("use", ["dvc_repo", "fetch", "flow"])
def test_each_way_to_dvc_names_the_fix(project: Path, use: str) -> None:
    """All databases at once, each command in a process of its own, as users run them."""
    files = databases(project)
    assert [file.parent.name for file in files] == ["local", "data", "links"]
    for file in files:
        overwrite(file, "head")
    said = alone(use)
    assert "DVC's index cannot be read" in said and "Run `posttrain repair`" in said
    repaired = ran(sys.executable, "-m", "posttrain", "repair")
    assert repaired.count("was damaged: removed, DVC makes it again") == len(files), repaired
    assert alone(use) == "" and use_all(project) == []


def alone(use: str) -> str:
    """Use DVC in a new process and return the error: an open connection of this one may hide damage."""
    env = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    return ran(sys.executable, "-c", ALONE, use, env=env)
