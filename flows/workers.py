"""`posttrain workers`: let a host run stages in its own clone (docs/flows.md)."""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path

from posttrain.errors import PipelineError, PosttrainError
from posttrain.isolation.library import python_path
from posttrain.measure.terminal import escaped

from . import server
from .graph import find_root

EXAMPLE = "--name big-gpu"


def host_name(root: Path) -> str:
    """Return a name for this clone, because a machine may have several. Prefect does not allow a slash in it."""
    return f"{socket.gethostname()}{str(root).replace('/', '-')}"


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="posttrain workers", description=__doc__, epilog=f"example: posttrain workers {EXAMPLE}"
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the argument: a name."""
    parser.add_argument("--name", help="the host's name; default: the machine's name and the clone's folder")


def main(words: Sequence[str] | None = None) -> int:
    """Serve the flow `stage` from this clone until interrupted."""
    return run(parser().parse_args(words))


def run(options: argparse.Namespace) -> int:
    """Serve and return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored where a script's shell started this with `&`
    try:
        root = find_root(Path.cwd())
        os.chdir(root)
        home = server.prepare(root)
        url = server.find(home)
        if url is None:
            fix = "Set it to the coordinator's server, e.g. http://HOST:4200/api"
            raise PipelineError(what="not set", where="PREFECT_API_URL", fix=fix)
        server.attach(home, url)
    except PosttrainError as error:
        print(escaped(f"error: {error}"), file=sys.stderr)
        return 1
    os.environ.setdefault("PYTHONPATH", python_path())
    os.environ.setdefault("PREFECT_RUNNER_POLL_FREQUENCY", "5")  # by which the coordinator sees that this host lives
    from .serving import serve
    from .stage import stage

    name = options.name or host_name(root)
    print(f"'{name}' serves stages in {root}", flush=True)
    serve(stage, name, limit=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
