"""Run a stage whose processes are started by the user's command, e.g. srun. The stage's own process only waits."""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys

from posttrain.errors import PipelineError
from posttrain.isolation.library import library_environment
from posttrain.pipeline.processes.children import RESUME
from posttrain.pipeline.processes.launch import own_command
from posttrain.pipeline.processes.schedulers import LAUNCH, is_scheduled, processes_of
from posttrain.pipeline.workspace import failure_path

PR_SET_PDEATHSIG = 1
"""The constant from <linux/prctl.h> for the signal that a process gets when its parent ends."""


def start_elsewhere(stage: str) -> bool:
    """Start a stage's processes with POSTTRAIN_LAUNCH and wait for them. Return False if it is not set."""
    template = os.environ.pop(LAUNCH, "")
    if not template or is_scheduled() or (processes := processes_of(stage)) == 1:
        return False
    failure_path(stage).unlink(missing_ok=True)
    words = [*_words(template.replace("{processes}", str(processes))), *own_command()]
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        launcher = subprocess.Popen(
            words,
            env=library_environment(),
            stdin=subprocess.DEVNULL,
            preexec_fn=_end_with_parent,  # noqa: PLW1509 - it takes no lock
        )
    except OSError as error:
        what = f"`{words[0]}` cannot be started: {error.strerror}"
        fix = f"Name a program on this host's PATH, e.g. srun, or unset {LAUNCH}"
        raise PipelineError(what=what, where=LAUNCH, fix=fix) from error
    try:
        status = launcher.wait()
    finally:
        launcher.terminate()
        launcher.wait()
    if status and failure_path(stage).exists():  # rank 0 has said it
        raise SystemExit(1)
    if status:
        what = f"`{words[0]}` ended with exit code {status}; see its output above"
        raise PipelineError(what=what, where=stage, fix=RESUME)
    return True


def _words(template: str) -> list[str]:
    try:
        return shlex.split(template)
    except ValueError as error:
        raise PipelineError(
            what=f"it is not a valid command ({error})", where=LAUNCH, fix="Use the syntax of a shell"
        ) from error


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
