"""If a stage makes no progress for long, print a line and the stacks of all processes, to show where it waits."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from posttrain.errors import ParamsError
from posttrain.measure.phases import CLOCK
from posttrain.measure.terminal import escaped

SETTING: Final = "POSTTRAIN_STALL_MINUTES"
"""The environment variable with the minutes before a stage reports a stall; 0: never."""
MINUTES: Final = 10.0
STACKS: Final = signal.SIGUSR2
"""On this signal, a posttrain process prints its stacks to stderr."""
SHOWN: Final = 32
"""Maximum number of child processes in the list."""
OURS: Final = re.compile(r" -m (stages|posttrain)\b")
"""Commands of processes that print their stacks. The user's programs may use the signal differently."""
_MEANS: Final = {
    "load": "inputs to be read",
    "generate": "samples",
    "reward": "scores of rewards",
    "reference": "reference models or measurements",
    "train": "an update; it may be waiting for other processes of the run",
    "write": "files to be written",
}


def print_stacks_on_signal() -> None:
    """Make this process print its threads' stacks on the signal."""
    if sys.__stderr__ is not None:
        faulthandler.register(STACKS, file=sys.__stderr__, all_threads=True)


def watch_stalls(stage: str) -> None:
    """Start a thread that reports once if no phase begins or ends and no work advances."""
    given = os.environ.get(SETTING) or str(MINUTES)
    if not re.fullmatch(r"\d+(\.\d+)?", given):
        raise ParamsError(
            what=f"{SETTING} = {given:.40}", where="environment", fix="Give minutes, e.g. 10, or 0 for never"
        )
    if (minutes := float(given)) > 0:
        threading.Thread(target=_watch, args=(stage, minutes * 60), daemon=True).start()


def _watch(stage: str, limit: float) -> None:
    said = 0.0
    """When the stall that was reported began; 0: none was."""
    while True:
        began, name = CLOCK.moved, CLOCK.current
        still = time.monotonic() - began
        if said and said != began:
            _say(f"{stage} moves again after {(began - said) / 60:.3g} minutes")
            said = 0.0
        if still >= limit and not said:
            said = began
            waits = f" (waits for {_MEANS[name]})" if name in _MEANS else ""
            _say(
                f"{stage} has not moved for {still / 60:.3g} minutes: phase {name}{waits}. It still runs; "
                f"{SETTING} sets after how long this is said. Its stacks and child processes:\n{_own_stacks()}"
            )
            for line in _children():
                _say(line)
        time.sleep(min(limit / 4, 5.0))


def _say(line: str) -> None:
    """Write a line to stderr without its buffer. Python aborts at exit if a thread holds the buffer."""
    if sys.__stderr__ is not None:
        os.write(sys.__stderr__.fileno(), f"{escaped(line)}\n".encode())


def _own_stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file=file, all_threads=True)
        file.seek(0)
        return file.read().strip()


def _children() -> Iterator[str]:
    """Yield a line for each child process. Children that can print their stacks do so on stderr."""
    try:
        import psutil
    except ImportError:  # the library alone does not need it
        return

    for child in psutil.Process().children(recursive=True)[:SHOWN]:
        try:
            spent = sum(child.cpu_times()[:2])
            command = " ".join(child.cmdline())[:200]
            yield f"child {child.pid}: {child.status()}, {spent:.1f} s of processor time, {command}"
            if OURS.search(command) and _handles(child.pid):
                child.send_signal(STACKS)
        except psutil.Error:  # it has ended
            continue


def _handles(pid: int) -> bool:
    """Tell whether a process handles the signal. Otherwise the signal would end it."""
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (STACKS - 1) & 1)
