"""A file of a server by `dvc import-url`, as docs/data.md says: pinned, updated, and downloaded in a fresh clone."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain.tables.store import read_table
from tests.tables.hub_server import COMMIT
from tests.workspace import ROOT, dvc, git, make_workspace

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("own")]
PARAMS = "data: {files: {mine: {path: my/data, chat: {path: '*.jsonl', test_share: 0}}}}\n"


def put(file: Path, count: int) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(json.dumps({"prompt": f"{n}+1?", "completion": str(n + 1)}) for n in range(count)))


def test_a_file_of_a_server(tmp_path: Path) -> None:
    served = tmp_path / "served/datasets/org/name/chat.jsonl"
    put(served, 100)
    (tmp_path / "params.yaml").write_text(PARAMS)
    workspace = make_workspace(tmp_path / "clone", tmp_path / "params.yaml")
    command = [sys.executable, "-m", "tests.tables.hub_server", str(tmp_path / "served")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = f"http://127.0.0.1:{server.stdout.readline().strip()}/datasets/org/name/resolve/{COMMIT}/chat.jsonl"
        (workspace / "my/data").mkdir(parents=True)

        def rows() -> int:
            done = dvc(workspace, "repro", "data_files@mine")
            assert done.returncode == 0, done.stdout
            return read_table(workspace / "data/mine/chat.parquet", "chat").height

        done = dvc(workspace, "import-url", address, "my/data/chat.jsonl")
        assert done.returncode == 0, done.stdout
        git(workspace, "add", "my/data/chat.jsonl.dvc", "my/data/.gitignore")
        assert rows() == 100
        put(served, 120)
        assert rows() == 100, "the version is pinned until it is updated"
        done = dvc(workspace, "update", "my/data/chat.jsonl.dvc")
        assert done.returncode == 0, done.stdout
        assert rows() == 120
        # a fresh clone has neither the file nor the cache
        for folder in ("my/data/chat.jsonl", "data", ".dvc/cache", ".dvc/tmp"):
            place = workspace / folder
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        assert rows() == 120
        server.terminate()
