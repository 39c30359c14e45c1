"""`posttrain flow [TARGET ...]`: run the stages of dvc.yaml as Prefect tasks. DVC decides which of them run."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
from itertools import count
from pathlib import Path
from types import FrameType
from typing import NoReturn

from posttrain.errors import PipelineError, PosttrainError
from posttrain.measure.terminal import escaped

from . import artifacts, process, server
from .artifacts import Outcome
from .graph import Executor, GraphReader, Selection, find_root, select
from .temporary_server import start_temporary

EXAMPLE = "online report"
_TICK = 0.5
_LOOK_EVERY, _PATIENCE = 5.0, 30.0
"""The seconds between two looks at a server, and how long it may take to answer while the machine is busy."""


class _ServerLostError(PipelineError):
    """Prefect's server does not answer any more."""


def main(words: list[str] | None = None) -> int:
    """Run the command line. Return 0 if all stages are up to date, 1 if one failed, 128 + signal if interrupted."""
    return run(parser().parse_args(words))


def run(options: argparse.Namespace) -> int:
    """Run the flow and return the exit code."""
    signal.signal(signal.SIGTERM, raise_exit)
    try:
        return _run(options.targets, options.selection, options.executor)
    except _ServerLostError as error:
        _exit_at_once(error, 1)
    except PosttrainError as error:
        print(escaped(f"error: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="posttrain flow", description=__doc__, epilog=f"example: posttrain flow {EXAMPLE}"
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: targets, and where they run."""
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="a stage, a foreach group, a dvc.yaml or an output; its dependencies run too; default: all stages",
    )
    parser.add_argument(
        "--force",
        action="store_const",
        const="all",
        default="stale",
        dest="selection",
        help="run stages that are up to date too",
    )
    executors = parser.add_mutually_exclusive_group()
    for executor, where in {
        "workers": "on the hosts that run `posttrain workers`",
        "ray": "as tasks of Ray (extra `ray`; RAY_ADDRESS sets the cluster)",
        "dask": "as tasks of Dask (extra `dask`; DASK_SCHEDULER_ADDRESS sets the cluster)",
    }.items():
        executors.add_argument(
            f"--{executor}",
            action="store_const",
            const=executor,
            default="local",
            dest="executor",
            help=f"run stages {where} (docs/flows.md)",
        )


def _run(targets: list[str], selection: Selection, executor: Executor) -> int:
    if executor == "workers" and selection == "all":
        what = "hosts use all results in the remote's run cache, so --force would not run them again"
        fix = "Remove --force or --workers"
        raise PipelineError(what=what, where="--workers --force", fix=fix)
    root = find_root(Path.cwd())
    home = server.prepare(root)
    url = server.find(home)
    if url is not None:
        server.attach(home, url)
        threading.Thread(target=_report_outages, args=(url,), daemon=True).start()
    reader = GraphReader(root, targets)
    if not reader.stages:  # reading the graph has brought the only hidden stage up to date
        print("the stage 'code' is up to date")
        return 0
    if url is None and not select(reader.stages, selection):
        # Nothing to record, so that no server has to be started, which takes seconds.
        print(artifacts.table(reader.stages, {stage.name: Outcome("Cached") for stage in reader.stages}))
        return 0
    temporary = start_temporary(home) if url is None else None
    # Imported late, because Prefect reads its environment when it is imported; DVC reads the graph meanwhile.
    from httpx import TransportError

    from .run import run_pipeline

    if temporary is not None:
        temporary.wait()
    try:
        state = run_pipeline(root, reader.stages, targets, selection, executor)
    except TransportError as error:
        raise _lost_error(os.environ["PREFECT_API_URL"]) from error
    if state.is_completed():
        return 0
    print(escaped(str(state.message)), file=sys.stderr)
    return 128 + signal.SIGINT if state.is_cancelled() else 1


def _report_outages(url: str) -> None:
    """Say when a server that this flow did not start stops answering, and when it answers again.

    If the flow is interrupted meanwhile, end it as soon as no stage has run for some seconds.
    """
    here, idle = True, 0.0
    for tick in count(1):
        time.sleep(_TICK)
        idle = idle + _TICK if process.INTERRUPTED and not here and not process.RUNNING else 0.0
        if idle >= _LOOK_EVERY:
            _exit_at_once(_lost_error(url), 128 + process.INTERRUPTED[0])
        if tick * _TICK % _LOOK_EVERY == 0 and server.answers(url, _PATIENCE) is not here:
            here = not here
            lost = "does not answer. Start it again: `posttrain server`. The running stages go on"
            print(f"Prefect's server at {url} {'answers again' if here else lost}", file=sys.stderr, flush=True)


def _lost_error(url: str) -> _ServerLostError:
    what, fix = "Prefect's server has stopped answering", "Finished stages are in dvc.lock. Run the flow again"
    return _ServerLostError(what=what, where=url, fix=fix)


def _exit_at_once(error: _ServerLostError, code: int) -> NoReturn:
    """Exit without Prefect, which would first try for minutes to reach the lost server."""
    print(escaped(f"error: {error}"), file=sys.stderr, flush=True)
    sys.stdout.flush()
    os._exit(code)


def raise_exit(number: int, _: FrameType | None) -> NoReturn:
    """Raise on SIGTERM, so that running stages end cleanly."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
