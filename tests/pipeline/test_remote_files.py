"""A file of a server by `dvc import-url`, as docs/data.md says: pinned, updated, pushed and pulled."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from posttrain.pipeline.tables.store import read_table
from tests.pipeline.tables.hub_server import COMMIT, served
from tests.workspace import dvc, git, make_workspace

pytestmark = [pytest.mark.slow]
PARAMS = "data: {files: {mine: {path: my/data, chat: {path: '*.jsonl', test_share: 0}}}}\n"


def put(file: Path, count: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps({"prompt": f"{n}+1?", "completion": str(n + 1)}) for n in range(count)))


def do(workspace: Path, *arguments: str) -> None:
    done = dvc(workspace, *arguments)
    assert done.returncode == 0, done.stdout


def rows(workspace: Path) -> int:
    """The rows of the table after `dvc repro`."""
    do(workspace, "repro", "data_files@mine")
    return read_table(workspace / "data/mine/chat.parquet", "chat").height


def test_a_file_of_a_server(tmp_path: Path) -> None:
    file = tmp_path / "served/datasets/org/name/chat.jsonl"
    put(file, 100)
    (tmp_path / "params.yaml").write_text(PARAMS)
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    with served(tmp_path / "served") as address:
        (workspace / "my/data").mkdir(parents=True)
        do(workspace, "remote", "add", "--default", "store", str(tmp_path / "store"))
        do(workspace, "import-url", f"{address}/datasets/org/name/resolve/{COMMIT}/chat.jsonl", "my/data/chat.jsonl")
        git(workspace, "add", "my/data/chat.jsonl.dvc", "my/data/.gitignore")
        assert rows(workspace) == 100
        put(file, 120)
        assert rows(workspace) == 100, "the version is pinned until it is updated"
        do(workspace, "update", "my/data/chat.jsonl.dvc")
        assert rows(workspace) == 120
        do(workspace, "push", "my/data/chat.jsonl.dvc")
    # as in a fresh clone, with neither the file nor the cache, and the server is gone
    for place in ("my/data/chat.jsonl", "data/mine", ".dvc/cache"):
        shutil.rmtree(workspace / place) if (workspace / place).is_dir() else (workspace / place).unlink()
    do(workspace, "pull", "my/data/chat.jsonl.dvc")
    assert rows(workspace) == 120
