"""How a stage is run from the command line: `python -m stages.NAME [RUN]`."""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable

import psutil

from posttrain.errors import ParamsError, PosttrainError

ORPHAN_CHECK_S = 0.5
SHELLS = ("sh", "dash", "bash", "zsh", "ksh", "fish")
RUN_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def run_stage(work: Callable[[], None]) -> None:
    """Run a stage that exists once."""
    _parser(work).parse_args()
    _guarded(work)


def run_named_stage(work: Callable[[str], None]) -> None:
    """Run a stage that exists once for each named run of params.yaml."""
    parser = _parser(work)
    parser.add_argument("run", help="the run's name in params.yaml")
    name: str = parser.parse_args().run
    _guarded(lambda: work(name))


def checked_name(name: str) -> str:
    """The run's name, if it can be the name of a folder."""
    if not RUN_NAME.fullmatch(name):
        mend = "Use letters, digits, '-' and '_', beginning with a letter or digit"
        raise ParamsError(what=f"'{name}' cannot name a run", where="params.yaml", mend=mend)
    return name


def _parser(work: Callable[..., None]) -> argparse.ArgumentParser:
    module = sys.modules[work.__module__]
    name = module.__spec__.name if module.__spec__ else work.__module__
    return argparse.ArgumentParser(
        prog=f"python -m {name}",
        description=module.__doc__,
        epilog="Parameters come from params.yaml; set POSTTRAIN_TRACEBACK=1 to see where an error was raised.",
    )


def _guarded(work: Callable[[], None]) -> None:
    """Run the work; an error of ours is one clear line and exit code 1, without a traceback unless asked for."""
    if "DVC_ROOT" in os.environ:
        threading.Thread(target=_end_with, args=(_dvc_process(),), daemon=True).start()
    try:
        work()
    except PosttrainError as error:
        if os.environ.get("POSTTRAIN_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(1) from None
    # Everything is written; taking the interpreter apart with torch in it would only cost another second.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _dvc_process() -> psutil.Process | None:
    """The process that runs this stage; None if it is gone already.

    DVC starts a shell, and some shells stay between the two where others become the stage. An orphan's ancestor is
    init or a session's manager, which are no Python programs.
    """
    ancestor = next((above for above in psutil.Process().parents() if above.name() not in SHELLS), None)
    return ancestor if ancestor and ancestor.name().casefold().startswith(("python", "dvc")) else None


def _end_with(dvc: psutil.Process | None) -> None:
    """End once DVC is gone: an orphan would go on writing into outputs that the next run makes anew."""
    with contextlib.suppress(psutil.NoSuchProcess):
        while dvc and dvc.is_running() and dvc.status() != psutil.STATUS_ZOMBIE:
            time.sleep(ORPHAN_CHECK_S)
    print("error: the dvc process that started this stage is gone, so the stage ends too", file=sys.stderr, flush=True)
    os._exit(1)
