"""What users and model folders bring along: addresses in a README, patterns that break a tokenizer, and file modes."""

from __future__ import annotations

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.faults.processes import Server
from posttrain.errors import DataError, PosttrainError
from posttrain.models.files.store import load_tokenizer
from posttrain.pipeline.commands import line
from posttrain.text.chat import ChatText
from tests.library.models.tiny import tiny_folder
from tests.pipeline.tables.samples import assistant, user
from tests.pipeline.tables.test_data_stages import put, run
from tests.workspace import ROOT
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_every_output_has_the_mode_of_the_umask(smoke_workspace: Path) -> None:
    os.umask(mask := os.umask(0o022))
    found = modes(smoke_workspace)
    assert any(name.endswith(".safetensors") for name in found)
    linked = {name for name in found if (smoke_workspace / name).stat().st_nlink > 1}
    assert any(name.endswith(".safetensors") for name in linked)
    assert found == {name: 0o444 if name in linked else 0o666 & ~mask for name in found}, "links have the cache's mode"
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
    assert found and set(found.values()) <= {0o640, 0o444}, "links have the cache's mode"
    folders = {file.parent for name in OUTPUTS for file in own_workspace.glob(f"{name}/sft/main/*")}
    assert all(folder.stat().st_mode & 0o777 == 0o750 for folder in folders), "and their folders that of the umask"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (os.mkfifo, "own/sub/odd is a pipe, not a file. Remove it from the folder"),
        (
            lambda place: place.symlink_to("/dev/zero"),
            "own/sub/odd is a link to /dev/zero, which is outside the worksp",
        ),
        (lambda place: place.symlink_to("/etc"), "own/sub/odd is a link to /etc, which is outside the workspace"),
    ],
)
@pytest.mark.parametrize("group", ["data.files", "base.folders"])
def test_what_is_no_file_is_refused_at_once(
    tmp_path: Path, make: Any, said: str, group: str, stage_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "own/sub/rows.jsonl", [{"prompt": "a", "completion": "b"}])
    make(tmp_path / "own/sub/odd")
    (tmp_path / "own/config.json").write_text("{}")
    section, kind = group.split(".")
    settings = {"path": "own", **({"chat": "sub/rows.jsonl"} if section == "data" else {})}
    (tmp_path / "params.yaml").write_text(json.dumps({section: {kind: {"mine": settings}}}))
    for stage in (f"{section}_{kind} mine", "code"):
        ended = stage_server.run(tmp_path, stage, patience=60)
        assert ended.status == 1 and said in ended.output, (stage, ended.output)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PosttrainError, match=re.escape(said)):
        line.run(line.parse(["check"]))


@pytest.mark.slow
def test_a_device_outside_the_workspace_is_refused_where_links_are_allowed(tmp_path: Path) -> None:
    put(tmp_path / "own/rows.jsonl", [{"prompt": "a", "completion": "b"}])
    (tmp_path / "own/odd.jsonl").symlink_to("/dev/zero")
    done = run(tmp_path, "files", path="own", chat="rows.jsonl", outside_workspace=True)
    assert done.returncode == 1 and "own/odd.jsonl is a device, not a file" in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["rows.jsonl", "rows.csv"])
def test_a_line_without_an_end_is_refused_before_it_is_read(tmp_path: Path, name: str) -> None:
    file = tmp_path / "own" / name
    put(file, [])
    file.write_text("prompt,completion\n" if name.endswith("csv") else '{"prompt": "a", "completion": "b"}\n')
    os.truncate(file, 2**34)  # zeros that take no room on the disk
    done = run(tmp_path, "files", path="own", chat=name)
    assert done.returncode == 1 and f"own/{name} cannot be read (line 2 is longer than 64 MB)" in done.stderr


@pytest.mark.slow
def test_a_list_that_does_not_fit_the_memory_is_refused(tmp_path: Path) -> None:
    put(tmp_path / "own/rows.json", [])
    os.truncate(tmp_path / "own/rows.json", 2**40)
    done = run(tmp_path, "files", path="own", chat="rows.json")
    assert done.returncode == 1 and "too much to read at once; write .jsonl" in done.stderr


@pytest.mark.parametrize(
    ("place", "stage"),
    [("custom/odd.py", "code"), ("custom/odd.py", "external mine"), ("my/train.py", "external mine"),
     ("models/sft/main/odd", None), ("data/mine", None)],
)  # fmt: skip
def test_pipes_that_dvc_would_hash_are_refused(
    tmp_path: Path, place: str, stage: str | None, stage_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_of = {"script": "my/train.py", "command": ["true"], "start": "base/start", "data": "none", "seed": 1}
    base = {"folders": {"start": {"path": "my"}}}
    (tmp_path / "params.yaml").write_text(json.dumps({"base": base, "external": {"runs": {"mine": run_of}}}))
    (tmp_path / "dvc.yaml").symlink_to(ROOT / "dvc.yaml")
    put(tmp_path / "my/train.py", [])
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / place).unlink(missing_ok=True)
    os.mkfifo(tmp_path / place)
    said = f"{place} is a pipe, not a file"
    if stage:
        ended = stage_server.run(tmp_path, stage, patience=60)
        assert ended.status == 1 and said in ended.output, ended.output
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PosttrainError, match=re.escape(said)):
        line.run(line.parse(["check"]))
