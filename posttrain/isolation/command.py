"""Run the user's command so that it always ends with this process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from posttrain.isolation import keeper

PART: Final = 1 << 16
"""Bytes that are read at a time."""


def run_command(
    words: Sequence[str], environment: Mapping[str, str], folder: Path, show: Callable[[bytes], object]
) -> int:
    """Run a command and return its exit status; 128 + N if signal N ended it.

    `show` gets its output as it arrives. If this process ends first, everything that the command started is killed, and
    `folder`, where it writes, is removed.
    """
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(keeper.__file__), str(folder), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,  # signals to the group of this process are not for the command
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        while part := os.read(process.stdout.fileno(), PART):
            show(part)
        return process.wait()
    finally:
        process.stdin.close()
        process.wait()
        process.stdout.close()
