"""What each command takes on a finished project: `python -m benchmarks.commands [PROJECT]` prints a table.

On a terminal: seconds until the first text, until the end, and of the processor; the least of three. Commands that
compute (`laws`, `replay`, `accept`) or wait for somebody (`chat`, `serve`, `watch`, `track`) are not among them.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.machine import machine
from benchmarks.overhead.pipelines import finished
from tests.workspace import environment

COMMANDS: Final = (
    *("", "--help", "--version", "check", "params online", "params online.runs.grpo", "params algorithms"),
    *("params grpo", "params kl", "params metrics", "params --schema", "plan", "plan online@grpo"),
    *("preview two_step/chat sft/main", "reward test correct --table results/grpo/rollouts.parquet -n 5"),
    *("status", "checkpoints", "show results", "show report", "show timings", "show tokens two_step/chat sft/main"),
    *("compare", "compare dpo grpo", "why grpo.score", "where my", "push grpo --to hf:me/grpo --dry-run"),
    *("repair", "repair verify", "completion bash", "clean --list"),
)
TURNS: Final = 3
LEFT: Final = 5.0
"""Seconds of the processor beyond which a command is measured once."""


def main() -> None:
    """Measure every command and print the table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = finished(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(scratch) / "project")
        print(f"Machine: {machine()}\n\n| command | first text s | wall s | CPU s | |\n|---|---:|---:|---:|---|")
        for words in COMMANDS:
            turns = [measured(words, folder)]
            while len(turns) < TURNS and turns[0][2] < LEFT:
                turns.append(measured(words, folder))
            seconds = " | ".join(f"{min(turn[nth] for turn in turns):.2f}" for nth in range(3))
            print(
                f"| `posttrain {words}` | {seconds} | {'' if turns[0][3] == 0 else f'exit {turns[0][3]}'} |", flush=True
            )


def measured(words: str, folder: Path) -> tuple[float, float, float, int]:
    """Seconds until the first text and the end, seconds of the processor, and the exit code of a command."""
    command, before = [sys.executable, "-m", "posttrain", *words.split()], time.perf_counter()
    ours, theirs = os.openpty()
    child = subprocess.Popen(
        command, cwd=folder, env=environment(), stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    first = 0.0
    with contextlib.suppress(OSError):  # Linux says so when the other side has closed it
        while os.read(ours, 65536):
            first = first or time.perf_counter() - before
    os.close(ours)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    return first, time.perf_counter() - before, used.ru_utime + used.ru_stime, child.returncode


if __name__ == "__main__":
    main()
