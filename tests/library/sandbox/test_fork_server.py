"""The process that programs are forked from: how it tries its steps, and starts and ends programs."""

from __future__ import annotations

import os
import signal
from dataclasses import asdict
from pathlib import Path

import pytest

from posttrain.sandbox.fork_server import READY, Isolation, _attempt, _end, _fork
from posttrain.sandbox.parent import Limits, sealed


def fails() -> None:
    raise OSError("the kernel has none")


def test_a_step_is_tried_in_another_process() -> None:
    assert _attempt(lambda: None) == ""
    assert _attempt(fails) == "the kernel has none"
    assert _attempt(lambda: os._exit(3)) == f"it ends the process (status {3 << 8})"


def test_isolation_is_found_if_it_is_wanted(tmp_path: Path) -> None:
    assert Isolation(tmp_path, False).faults == {}


@pytest.mark.parametrize("group", [True, False])
def test_a_program_is_forked_and_killed(tmp_path: Path, group: bool) -> None:
    read, write = os.pipe()
    limits = asdict(Limits(memory=2**46))
    try:
        with sealed("import time\ntime.sleep(60)") as source, Path(os.devnull).open("wb") as nothing:
            request = {"kind": "program", "fds": ["source", "report", "stdin", "stdout", "stderr"], **limits}
            files = [source, write, *[nothing.fileno()] * 3]
            answer = _fork(request, files, Isolation(tmp_path, False))
            assert answer.keys() == {"pid"} and os.read(read, 100) == READY
            used = _end(answer["pid"], group)
    finally:
        os.close(read)
        os.close(write)
    assert used["status"] == signal.SIGKILL and used["seconds"] >= 0 and used["memory"] > 2**20
    with pytest.raises(ChildProcessError):
        os.waitpid(answer["pid"], 0)
