"""A dvc.lock of which a kill left only a part is mended, and what was done is not done again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.workspace import dvc

pytestmark = pytest.mark.xdist_group("smoke")


def mend(workspace: Path) -> str:
    command = [sys.executable, "-m", "posttrain", "mend"]
    return subprocess.run(command, cwd=workspace, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("share", [0.0, 0.4, 0.85])
def test_a_damaged_lock_is_set_aside_and_nothing_is_run_again(own_workspace: Path, share: float) -> None:
    lock = own_workspace / "dvc.lock"
    whole = lock.read_bytes()
    assert "nothing to mend" in mend(own_workspace)
    # most cuts leave what DVC reads, with some dependency or stage less; one after a bare `path:` does not
    end = whole.index(b"- path:", int(share * len(whole))) + len(b"- path:") if share else 0
    lock.write_bytes(whole[:end])
    refused = dvc(own_workspace, "repro")
    assert refused.returncode != 0, "DVC reads it, so there is nothing to mend"
    assert "set aside as dvc.lock.damaged" in mend(own_workspace)
    done = dvc(own_workspace, "repro")
    assert done.returncode == 0, done.stdout
    assert "Running stage" not in done.stdout, done.stdout
    assert lock.read_bytes() == whole


@pytest.mark.parametrize("part", [b"", b'{"read": {"/w'])
def test_a_damaged_rwlock_is_removed_and_a_whole_one_is_not(own_workspace: Path, part: bytes) -> None:
    rwlock = own_workspace / ".dvc/tmp/rwlock"
    rwlock.write_bytes(part)
    refused = dvc(own_workspace, "repro")
    assert refused.returncode != 0 and "RWLock-file" in refused.stdout
    assert "rwlock was damaged" in mend(own_workspace)
    assert dvc(own_workspace, "repro").returncode == 0
    whole = rwlock.read_bytes()
    assert "nothing to mend" in mend(own_workspace)
    assert rwlock.read_bytes() == whole
