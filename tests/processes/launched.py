"""Start the processes of a test and wait for them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TIMEOUT_S = 300


def launch(module: str, size: int, folder: Path, *arguments: str) -> None:
    """Run `python -m MODULE RANK SIZE RENDEZVOUS ARGUMENTS` once for each process; all must succeed."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    started = []
    for rank in range(size):
        command = [sys.executable, "-m", module, str(rank), str(size), f"file://{meeting}", *arguments]
        log = (folder / f"process-{rank}.log").open("w")
        started.append(subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT))
    try:
        codes = [process.wait(TIMEOUT_S) for process in started]
    finally:
        for process in started:
            process.kill()
    assert not any(codes), "\n".join((folder / f"process-{rank}.log").read_text()[-3000:] for rank in range(size))
