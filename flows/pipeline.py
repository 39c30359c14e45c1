"""`python -m flows.pipeline [TARGET ...]`: the DAG of dvc.yaml as Prefect tasks; dvc.lock alone says what is done."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

from flows import idle, record, server
from flows.graph import Reading, Stage, Where, Which, chosen, find_root
from flows.record import Outcome
from posttrain.errors import PosttrainError


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
    reading = Reading(root, targets)
    url = server.find(home)
    if url is None or idle.possible(url):
        stages = reading.stages
        if not chosen(stages, which):
            return _nothing_to_do(url, stages)
    temporary = server.connect(home)
    # Imported so late because Prefect reads its environment when it is imported; meanwhile DVC answers.
    from flows.run import recorded

    if temporary is not None:
        temporary.wait()
    state = recorded(root, reading.stages, which, where)
    if state.is_completed():
        return 0
    print(state.message, file=sys.stderr)
    return 128 + signal.SIGINT if state.is_cancelled() else 1


def _nothing_to_do(url: str | None, stages: list[Stage]) -> int:
    """Where a server is up it is told; one that is not takes seconds to start, and there is nothing to tell."""
    if url is None:
        print(record.table(stages, {stage.name: Outcome("Cached") for stage in stages}))
    else:
        print(f"View at {idle.recorded(url, stages)}", file=sys.stderr)
    return 0


def terminated(number: int, _: FrameType | None) -> NoReturn:
    """SIGTERM as an exception, so that what runs is ended in order."""
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())
