"""A stage's output with timestamps in logs/STAGE.log. The logs of the four runs before are STAGE.log.1 and so on."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Final, TextIO

from posttrain.measure.terminal import SafeStream, make_streams_safe

FOLDER: Final = Path("logs")
RUNS: Final = 5
"""The number of runs with kept logs."""
TERMINAL_CODE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def log_path(stage: str) -> Path:
    """Return the log file of a stage: `online@grpo` -> logs/online@grpo.log."""
    return FOLDER / f"{stage.replace('/', '@')}.log"


def start_log(stage: str) -> None:
    """Copy this process's output into the stage's log from now on. A full disk does not stop the stage."""
    path = log_path(stage)
    names = [path, *(path.with_name(f"{path.name}.{number}") for number in range(1, RUNS))]
    with contextlib.suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        for newer, older in reversed(list(pairwise(names))):
            if newer.exists():
                os.replace(newer, older)
        log = path.open("w", encoding="utf-8", buffering=1)
        make_streams_safe()
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, SafeStream):
                stream.copy_to(_Lines(log).write)


class _Lines:
    """Writes each finished line to a log. For a redrawn line, only the last version is written."""

    def __init__(self, log: TextIO) -> None:
        self._log, self._line = log, ""

    def write(self, text: str) -> None:
        """Write complete lines. The text is already safe."""
        *lines, self._line = (self._line + text).split("\n")
        self._line = self._line.rpartition("\r")[2]
        for line in lines:
            plain = TERMINAL_CODE.sub("", line.rstrip("\r").rpartition("\r")[2])
            with contextlib.suppress(OSError):
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {plain}\n")
