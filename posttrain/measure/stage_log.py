"""What a stage prints, with timestamps, in logs/STAGE.log; the logs of earlier runs stay as STAGE.log.1 to .4."""

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
"""The number of runs whose logs are kept."""
TERMINAL_CODE: Final = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def log_path(stage: str) -> Path:
    """Return where the log of a stage is: `online@grpo` -> logs/online@grpo.log."""
    return FOLDER / f"{stage.replace('/', '@')}.log"


def start_log(stage: str) -> None:
    """Copy what this process prints from now on into the stage's log; a full disk does not stop the stage."""
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
    """Writes each finished line into a log; of a line that is redrawn, the last version."""

    def __init__(self, log: TextIO) -> None:
        self._log, self._line = log, ""

    def write(self, text: str) -> None:
        """Write what is a whole line; the text is safe already."""
        *lines, self._line = (self._line + text).split("\n")
        self._line = self._line.rpartition("\r")[2]
        for line in lines:
            plain = TERMINAL_CODE.sub("", line.rstrip("\r").rpartition("\r")[2])
            with contextlib.suppress(OSError):
                self._log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {plain}\n")
