"""Lock files, which keep two processes out of the same folder or stage."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

from posttrain.errors import PipelineError

PATIENCE_S = 10.0
"""Seconds to wait for a lock. An orphaned process ends itself within a second."""
HELD = "held"
"""The lock file of a run's checkpoints."""
STALE_S = 60.0
"""Age in seconds before an unlocked folder is removed, because its process may be about to lock it."""
_HELD: dict[str, int] = {}


def hold(file: Path, what: str, patience_s: float = PATIENCE_S) -> None:
    """Hold a lock file until this process ends. Raise with the holder's name if another process holds it."""
    key, until = os.path.abspath(file), time.monotonic() + patience_s
    while key not in _HELD:
        handle = _locked(file)
        if handle is not None:
            _HELD[key] = handle
            with contextlib.suppress(OSError):  # a full disk must not stop a stage because of this line
                os.ftruncate(handle, 0)
                os.pwrite(handle, f"process {os.getpid()} ({' '.join(sys.argv)[:200]})".encode(), 0)
        elif time.monotonic() >= until:
            holder = file.read_text(encoding="utf-8", errors="replace") or "another process"
            fix = "Wait until it has ended, or end it; nothing was changed"
            raise PipelineError(what=f"{holder} is using {what}", where=str(file), fix=fix)
        else:
            time.sleep(0.1)


def held_folder(prefix: str, parent: Path, what: str) -> Path:
    """Return a new private folder that is locked until this process ends; remove folders of killed processes."""
    for old in parent.glob(f"{prefix}????????"):  # the letters of mkdtemp
        with contextlib.suppress(OSError):
            state = old.lstat()
            if state.st_uid == os.getuid() and time.time() - state.st_mtime > STALE_S:
                remove_unlocked(old)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    hold(folder / HELD, what)
    return folder


def is_locked(file: Path) -> bool:
    """Tell whether a living process holds a lock file."""
    handle = _locked(file)
    if handle is not None:
        os.close(handle)
    return handle is None


def remove_unlocked(folder: Path) -> bool:
    """Remove a folder of checkpoints unless a process uses it. Return True if it was removed."""
    handle = _locked(folder / HELD)
    if handle is not None:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(handle)
    return handle is not None


def _locked(file: Path) -> int | None:
    """Return a handle of a file's lock; None if another process holds it. The kernel frees it when a process ends."""
    import fcntl

    file.parent.mkdir(parents=True, exist_ok=True)
    try:
        handle = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
    except FileNotFoundError:  # the folder was removed in between
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(handle), file.stat()):  # else it was removed meanwhile
            return handle
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(handle)
    return None
