"""`python -m flows.pipeline [TARGET ...]`: the DAG of dvc.yaml as Prefect tasks; dvc.lock alone says what is done."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from flows import record, server
from flows.graph import Reading, Where, Which, chosen, find_root
from flows.record import Outcome
from posttrain.errors import PipelineError, PosttrainError


def main(words: list[str] | None = None) -> int:
    """Command line; 0 when all is up to date, 1 when a stage failed, 128 + signal when it was interrupted."""
    parser = argparse.ArgumentParser(prog="python -m flows.pipeline", description=__doc__)
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help="a stage, a foreach group, a dvc.yaml or an output, with all that it needs; default: all",
    )
    parser.add_argument(
        "--force", action="store_const", const="all", default="stale", dest="which", help="run also what is up to date"
    )
    elsewhere = parser.add_mutually_exclusive_group()
    for where, what in {
        "workers": "on the hosts that serve `python -m flows.workers`",
        "ray": "as tasks of Ray (extra `ray`; RAY_ADDRESS names a cluster)",
        "dask": "as tasks of Dask (extra `dask`; DASK_SCHEDULER_ADDRESS names a cluster)",
    }.items():
        elsewhere.add_argument(
            f"--{where}",
            action="store_const",
            const=where,
            default="here",
            dest="where",
            help=f"run stages {what} (docs/deploy.md)",
        )
    options = parser.parse_args(words)
    signal.signal(signal.SIGTERM, terminated)
    try:
        return _run(options.targets, options.which, options.where)
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(targets: list[str], which: Which, where: Where) -> int:
    root = find_root(Path.cwd())
    home = server.prepare(root)
    url = server.find(home)
    if url is not None:
        server.attach(home, url)
    reading = Reading(root, targets)
    if url is None and not chosen(reading.stages, which):
        # A server takes seconds to start, and there is nothing to record.
        print(record.table(reading.stages, {stage.name: Outcome("Cached") for stage in reading.stages}))
        return 0
    temporary = server.start_temporary(home) if url is None else None
    # Imported so late because Prefect reads its environment when it is imported; meanwhile DVC answers.
    from httpx import TransportError

    from flows.run import recorded

    if temporary is not None:
        temporary.wait()
    try:
        state = recorded(root, reading.stages, which, where)
    except TransportError as error:
        what, fix = (
            "Prefect's server cannot be reached any more",
            "Finished stages are in dvc.lock. Run the flow again",
        )
        raise PipelineError(what=what, where=os.environ["PREFECT_API_URL"], fix=fix) from error
    if state.is_completed():
        return 0
    print(state.message, file=sys.stderr)
    return 128 + signal.SIGINT if state.is_cancelled() else 1


def terminated(number: int, _: FrameType | None) -> NoReturn:
    """SIGTERM as an exception, so that what runs is ended in order."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
