"""Lock files between processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from posttrain.errors import PipelineError
from posttrain.locks import HELD, STALE_S, _locked, held_folder, hold, is_locked, remove_unlocked

HOLDS = """
import sys
from pathlib import Path
from posttrain.locks import hold
hold(Path(sys.argv[1]), "it")
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Path]:
    """A lock file that another process holds."""
    file = tmp_path / "other" / HELD
    child = subprocess.Popen([sys.executable, "-c", HOLDS, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == b"held\n"
    yield file
    child.communicate()


def test_a_lock_of_another_process(other: Path) -> None:
    assert is_locked(other) is True and _locked(other) is None
    with pytest.raises(PipelineError, match=r"process \d+ \(.*\) is using the stage"):
        hold(other, "the stage", patience_s=0.0)
    assert remove_unlocked(other.parent) is False and other.exists()


def test_a_lock_of_nobody(tmp_path: Path) -> None:
    file = tmp_path / "a" / HELD
    assert is_locked(file) is False
    handle = _locked(file)
    assert handle is not None and os.path.samestat(os.fstat(handle), file.stat())
    os.close(handle)
    assert remove_unlocked(file.parent) is True and not file.parent.exists()


def test_a_folder_of_this_process(tmp_path: Path) -> None:
    stale = tmp_path / "run-abcdefgh"
    stale.mkdir()
    os.utime(stale, (1, 1))
    folder = held_folder("run-", tmp_path, "the folder")
    assert folder.parent == tmp_path and folder.name.startswith("run-") and folder.is_dir() and STALE_S > 0
    assert not stale.exists() and is_locked(folder / HELD)
    assert (folder / HELD).read_text(encoding="utf-8").startswith(f"process {os.getpid()} (")
