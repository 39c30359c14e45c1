"""The remote side of an ssh connection, as a process of this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from posttrain.plugins.vllm_ssh import far_end
from posttrain.plugins.vllm_ssh.far_end import FarEnd


class Connection:
    """A running far end with its folder."""

    def __init__(self, place: Path, silent_s: float = 60.0) -> None:
        self.folder = place / "far"
        words = [str(self.folder), str(place / "former"), str(silent_s)]
        command = [sys.executable, "-I", "-c", Path(far_end.__file__).read_text(encoding="utf-8"), *words]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)

    def send(self, *lines: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        for line in lines:
            self.process.stdin.write(line if isinstance(line, bytes) else f"{json.dumps(line)}\n".encode())
        self.process.stdin.flush()

    def end(self) -> tuple[int, str]:
        _, said = self.process.communicate(timeout=60)
        return self.process.returncode, said.decode()


def test_files_arrive_and_the_servers_exit_code_is_returned(tmp_path: Path) -> None:
    connection = Connection(tmp_path)
    copied = f"cp -r {connection.folder}/model {tmp_path}/seen; exit $CODE"
    connection.send({"file": "model/a.bin", "bytes": 3}, b"abc", {"done": "model"}, {"file": "old", "bytes": 0})
    connection.send({"done": "old"}, {"remove": "old"}, {})
    connection.send({"start": ["sh", "-c", copied], "environment": {"CODE": "7"}})
    assert connection.process.wait(timeout=60) == 7
    assert (tmp_path / "seen/a.bin").read_bytes() == b"abc" and not connection.folder.exists()
    connection.end()


def test_the_end_of_the_connection_ends_the_server(tmp_path: Path) -> None:
    connection = Connection(tmp_path)
    connection.send({"start": ["sh", "-c", "sleep 300"], "environment": {}})
    status, said = connection.end()
    assert status == (-15) % 256 and said.strip() == "" and not connection.folder.exists()


def test_what_ends_without_a_server_fails(tmp_path: Path) -> None:
    assert Connection(tmp_path).end()[0] == 1
    silent = Connection(tmp_path, 0.1)
    assert silent.process.wait(timeout=60) == 1
    assert silent.end()[1].strip() == "received nothing for 0.1 s: the connection is lost"
    wrong = Connection(tmp_path)
    wrong.send({"remove": "../a"})
    assert wrong.end() == (1, "'../a' is not the name of a file in the folder\n")


@pytest.fixture
def here(tmp_path: Path) -> Any:
    """A far end in this process, which reads what is written to a pipe."""
    kept, (source, sink) = os.dup(0), os.pipe()
    os.dup2(source, 0)
    end = FarEnd(tmp_path / "far", 5.0)
    os.dup2(kept, 0)
    yield end, sink
    for handle in (kept, source, end._input):
        os.close(handle)


def test_lines_and_places(here: tuple[FarEnd, int], tmp_path: Path) -> None:
    end, sink = here
    os.write(sink, b'{"a": 1}\nrest')
    assert end._line() == b'{"a": 1}\n' and end._read(2) == b"re" and end._read(99) == b"st"
    os.close(sink)
    assert end._place("a/b") == tmp_path / "far/a/b" and end._place("a", "incoming") == tmp_path / "far/incoming/a"
    for wrong in ("/a", "..", "a/../../b", ""):
        with pytest.raises(Exception, match="is not the name of a file in the folder"):
            end._place(wrong)
    assert end.serve() == 1 and end._end() == 1, "there was no server"
