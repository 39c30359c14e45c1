"""Start the processes of a test and wait for them: forks of a process that has imported torch, which saves seconds."""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import sys
from collections.abc import Mapping
from multiprocessing import forkserver
from pathlib import Path

from tests.workspace import ROOT

TIMEOUT_S = 300
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [f"tests.pipeline.processes.{name}" for name in ("every_objective", "every_run", "sampling")]
)


def launch(module: str, size: int, folder: Path, *arguments: str) -> None:
    """Run the `main` of a module with RANK SIZE RENDEZVOUS ARGUMENTS once for each process; all must succeed."""
    folder.mkdir(parents=True, exist_ok=True)
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    with contextlib.chdir(ROOT):  # it imports from the folder in which it is started
        forkserver.ensure_running()
    started = []
    for rank in range(size):
        words = [str(rank), str(size), f"file://{meeting}", *arguments]
        log = folder / f"process-{rank}.log"
        started.append(CONTEXT.Process(target=_main, args=(module, words, environment, log)))
        started[-1].start()
    try:
        for process in started:
            process.join(TIMEOUT_S)
        codes = [process.exitcode for process in started]
    finally:
        for process in started:
            process.kill()
    assert codes == [0] * size, "\n".join((folder / f"process-{rank}.log").read_text()[-3000:] for rank in range(size))


def _main(module: str, words: list[str], environment: Mapping[str, str], log: Path) -> None:
    """Be the process `python -m MODULE WORDS`."""
    os.environ.update(environment)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(out, stream)
    sys.argv = [module, *words]
    importlib.import_module(module).main()
