"""Run a command, and kill everything it started when the command or the calling process ends.

    python -I -S keeper.py FOLDER WORD...

The caller holds the other end of stdin. The kernel closes it even if the caller is killed, and then FOLDER is removed
too. Only the standard library is imported, so that it starts in any environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

PR_SET_CHILD_SUBREAPER = 36
"""The constant from <linux/prctl.h> that makes orphaned descendants children of this process."""
PATIENCE_S = 10.0
"""Seconds that killed processes may take to end, e.g. processes that use a GPU."""
NOT_STARTED = 127
"""A shell's exit status for a command that it cannot start."""
_ENDING = threading.Lock()


def main() -> None:
    """Run the command in the arguments and exit with its exit status."""
    folder, *words = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        command = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"{words[0]}: {error.strerror}", flush=True)
        os._exit(NOT_STARTED)
    threading.Thread(target=_end_with_caller, args=(command.pid, folder), daemon=True).start()
    status = command.wait()
    with _ENDING:
        kill_all(command.pid)
        os._exit(status if status >= 0 else 128 - status)


def _end_with_caller(group: int, folder: str) -> None:
    sys.stdin.buffer.read()
    with _ENDING:
        kill_all(group)
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(1)


def kill_all(group: int) -> None:
    """Kill the command's group; on Linux also processes that it started in other sessions, as torchrun does."""
    until = time.monotonic() + PATIENCE_S
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)
    while (left := _descendants()) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _descendants() -> list[int]:
    """Return the living descendants of this process."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended
            state, parent, *_ = file.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            if state not in "ZX":
                parents[int(file.parent.name)] = int(parent)
    descendants, above = list[int](), {os.getpid()}
    while above:
        above = {pid for pid, parent in parents.items() if parent in above}
        descendants += above
    return descendants


if __name__ == "__main__":
    main()
