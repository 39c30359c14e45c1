"""Too little memory, or too few threads: never called damage."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from posttrain.errors import FREE_MEMORY, from_system, lacks_resources
from posttrain.pipeline.tables.store import write_table
from posttrain.pipeline.workspace import VERIFY
from tests.pipeline.tables.samples import table_of
from tests.workspace import ROOT, environment

LIMITED = """
import resource, sys
from pathlib import Path
import polars, pyarrow.parquet
from posttrain.errors import PosttrainError
from posttrain.pipeline.tables.store import read_table
size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + 2**20, size + 2**20))
try:
    read_table(sys.argv[1], "chat")
    print("read")
except PosttrainError as error:
    print(error)
"""


def test_a_table_is_not_damaged_where_threads_and_memory_are_missing(tmp_path: Path) -> None:
    file = tmp_path / "chat.parquet"
    write_table(table_of("chat"), file, "chat")
    command = [sys.executable, "-c", LIMITED, str(file)]
    done = subprocess.run(command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert VERIFY not in said and FREE_MEMORY in said, said


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
        BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)),
        OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)),
        RuntimeError("can't start new thread"),
        RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried"),
        OSError("Unknown error: Failed to launch worker thread: Resource temporarily unavailable"),
        pl.exceptions.PanicException("could not spawn threads: ThreadPoolBuildError { kind: Os { code: 11 } }"),
    ],
)  # fmt: skip
def test_what_systems_say(error: BaseException) -> None:
    assert lacks_resources(error)
    if isinstance(error, OSError) and error.errno:
        assert from_system(error, "here").fix == FREE_MEMORY


@pytest.mark.parametrize("error", [OSError(errno.ENOENT, "no"), ValueError("bad magic"), RuntimeError("size mismatch")])
def test_other_errors_are_other_errors(error: BaseException) -> None:
    assert not lacks_resources(error)


def test_a_command_without_memory_is_one_line(tmp_path: Path) -> None:
    script = (
        "import runpy, sys; import posttrain.pipeline.commands.line as line\n"
        'def run(arguments): raise RuntimeError("can\'t start new thread")\n'
        "line.run = run; sys.argv = ['posttrain', 'status']; runpy.run_module('posttrain', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "Traceback" not in done.stderr and FREE_MEMORY in done.stderr, done.stderr
