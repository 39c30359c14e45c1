"""What users and model folders bring along: addresses in a README, patterns that break a tokenizer, and file modes."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.models.store import load_tokenizer
from posttrain.text.chat import ChatText
from tests.library.models import tiny_folder
from tests.tables.samples import assistant, user
from tests.tables.test_data_stages import put, run
from tests.workspace import run as run_in

OUTPUTS = ("data", "metrics", "models", "plots", "records", "report", "results")


class Listener:
    """A port that counts who connects."""

    def __init__(self) -> None:
        self.count, self._socket = 0, socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            self.count += 1
            connection.close()

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listener() -> Iterator[Listener]:
    with closing(Listener()) as started:
        yield started


README = """---
configs:
  - config_name: default
    data_files:
      - {{split: train, path: "{url}/rows.jsonl"}}
      - {{split: test, path: ["{url}/rows.parquet", "hf://datasets/an/example/rows.jsonl"]}}
data_files: {url}/rows.jsonl
---
"""


@pytest.mark.parametrize("path", [".", "rows.jsonl", "{url}/rows.jsonl"])
def test_a_folder_of_data_contacts_no_address(tmp_path: Path, listener: Listener, path: str) -> None:
    rows = [{"messages": [*user(f"{n}?"), *assistant(f"#### {n}")]} for n in range(30)]
    put(tmp_path / "given/rows.jsonl", rows)
    (tmp_path / "given/README.md").write_text(README.format(url=listener.url))
    done = run(tmp_path, "files", path="given", chat={"path": path.format(url=listener.url)})
    assert (done.returncode == 0) == (path in (".", "rows.jsonl")), done.stderr
    assert done.stderr.count("error: ") == done.returncode and "Traceback" not in done.stderr
    assert listener.count == 0
    with socket.create_connection(("127.0.0.1", int(listener.url.rpartition(":")[2]))) as connection:
        connection.recv(1)  # until it is accepted and closed
    assert listener.count == 1, "the listener counts"


def test_a_pattern_that_makes_the_tokenizer_panic_is_one_error(tmp_path: Path) -> None:
    folder = tiny_folder(tmp_path / "model")
    file = folder / "tokenizer.json"
    settings = json.loads(file.read_text())
    slow = {"type": "Split", "pattern": {"Regex": "(x+x+)+y"}, "behavior": "Isolated", "invert": False}
    settings["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [slow, settings["pre_tokenizer"]]}
    file.write_text(json.dumps(settings))
    (folder / "manifest.json").unlink()
    text = ChatText(load_tokenizer(folder), str(folder))
    assert text.plain(["2 + 2"])[0]
    for encode in (lambda: text.plain(["x" * 60]), lambda: text.prompt(user("x" * 60))):
        with pytest.raises(DataError, match=r"the tokenizer fails on a text \(Onig: .*\)\. Simplify the patterns"):
            encode()


def modes(workspace: Path) -> dict[str, int]:
    """The mode of every file that stages write."""
    files = [file for name in OUTPUTS for file in (workspace / name).rglob("*") if file.is_file()]
    return {str(file.relative_to(workspace)): file.stat().st_mode & 0o777 for file in files}


def test_every_output_has_the_mode_of_the_umask(smoke_workspace: Path) -> None:
    os.umask(mask := os.umask(0o022))
    found = modes(smoke_workspace)
    assert any(name.endswith(".safetensors") for name in found)
    assert found == dict.fromkeys(found, 0o666 & ~mask)
    objects = [file for file in (smoke_workspace / ".dvc/cache/files").rglob("*") if file.is_file()]
    assert objects and {file.stat().st_mode & 0o777 for file in objects} == {0o444}, "as DVC makes them"


@pytest.mark.slow
def test_what_a_flow_writes_has_the_mode_of_the_umask_too(own_workspace: Path) -> None:
    params = own_workspace / "params.yaml"
    params.write_text(params.read_text().replace("epochs: 3.0", "epochs: 0.5"))
    script = "import os, runpy, sys; os.umask(0o027); sys.argv = ['flows.pipeline', 'sft@main']; "
    done = run_in(
        own_workspace, sys.executable, "-c", script + "runpy.run_module('flows.pipeline', run_name='__main__')"
    )
    assert done.returncode == 0, done.stdout
    found = {name: mode for name, mode in modes(own_workspace).items() if "sft/main" in name}
    assert found and found == dict.fromkeys(found, 0o640)
