"""The pipeline on a schedule, on new data, or on workers: `python -m flows.deploy serve | pool POOL | watch FOLDER`.

The address in POSTTRAIN_WEBHOOK is told of every failure. More in docs/deploy.md.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from flows import arguments, arrivals, server
from flows.graph import find_root
from flows.notify import VARIABLE
from posttrain.errors import PipelineError, PosttrainError
from posttrain.workspace import python_path


def main(words: list[str] | None = None) -> int:
    """Command line; `serve` and `watch` go on until they are ended."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        root = find_root(Path.cwd())
        os.chdir(root)
        home = server.prepare(root)
        {"serve": _serve, "pool": _pool, "watch": _watch}[options.command](root, home, options)
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.deploy", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    serve = commands.add_parser("serve", help="run it from this process: a schedule, new data, Prefect's pages")
    pool = commands.add_parser("pool", help="hand it to the workers of a work pool, which is made if it is not there")
    pool.add_argument("pool", help="the work pool; start a worker with `prefect worker start --pool POOL`")
    for one in (serve, pool):
        one.add_argument("targets", nargs="*", metavar="TARGET", help="stages, as for flows.pipeline; default: all")
        one.add_argument("--name", default="scheduled", help="the deployment's name (default: scheduled)")
        when = one.add_mutually_exclusive_group()
        when.add_argument("--cron", type=arguments.cron, help="e.g. '0 3 * * *'")
        when.add_argument("--every", type=arguments.seconds, metavar="SECONDS")
        one.add_argument("--watch", type=Path, metavar="FOLDER", help="also run when a file there is new or changed")
    watch = commands.add_parser("watch", help="tell Prefect of new data, for a deployment on a work pool")
    watch.add_argument("watch", type=Path, metavar="FOLDER")
    for one in (serve, watch):
        one.add_argument("--look-every", type=arguments.seconds, default=5.0, metavar="SECONDS", help="default 5")
    return parser


def _serve(root: Path, home: Path, options: argparse.Namespace) -> None:
    temporary = server.connect(home)
    if temporary is not None:
        temporary.wait()
    if "PYTHONPATH" not in os.environ:
        os.environ["PYTHONPATH"] = python_path()  # for the processes that the runs are
    from flows.run import pipeline
    from flows.serving import serve

    over = threading.Event()
    if options.watch:
        looking = (arrivals.Watch(options.watch), options.look_every, over, arrivals.emit)
        threading.Thread(target=arrivals.watch, args=looking, daemon=True).start()
    print(f"serving pipeline/{options.name} in {root}; failures are told to {_told()}", flush=True)
    try:
        # One at a time by this process and not by the server, where the place of a killed run stays taken for minutes.
        serve(
            pipeline,
            options.name,
            limit=1,
            cron=options.cron,
            interval=options.every,
            triggers=_triggers(options),
            parameters={"targets": options.targets},
        )
    finally:
        over.set()


def _pool(root: Path, home: Path, options: argparse.Namespace) -> None:
    _need_server(home)
    from prefect import Flow
    from prefect.client.schemas.objects import ConcurrencyLimitConfig

    _ensure_pool(options.pool)
    source: Any = Flow.from_source(source=str(root), entrypoint="flows/run.py:pipeline")
    source.deploy(
        name=options.name,
        work_pool_name=options.pool,
        cron=options.cron,
        interval=options.every,
        triggers=_triggers(options) or None,
        parameters={"targets": options.targets},
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=_queue()),
        print_next_steps=False,
        ignore_warnings=True,
    )
    print(f"pipeline/{options.name} is deployed to the pool '{options.pool}'. On each host, in {root}:")
    print(f'  export PREFECT_API_URL={os.environ["PREFECT_API_URL"]} {server.AUTH}="$(cat {home / "login"})"')
    print(f"  prefect worker start --pool {options.pool}")
    if options.watch:
        print(f"  python -m flows.deploy watch {options.watch}    # once, where the data arrives")


def _watch(_: Path, home: Path, options: argparse.Namespace) -> None:
    eye = arrivals.Watch(options.watch)
    _need_server(home)
    arrivals.watch(eye, options.look_every, threading.Event(), arrivals.emit)


def _need_server(home: Path) -> None:
    """Workers and events need a server that outlives this command."""
    url = server.find(home)
    if url is None:
        raise PipelineError(
            what="no Prefect server is up", where="PREFECT_API_URL", fix="Start one: python -m flows.server (make ui)"
        )
    server.attach(home, url)


def _triggers(options: argparse.Namespace) -> list[Any]:
    if not options.watch:
        return []
    from prefect.events import DeploymentEventTrigger

    match: Any = {"prefect.resource.id": arrivals.resource(options.watch)}
    return [DeploymentEventTrigger(name=f"new data in {options.watch}", expect={arrivals.EVENT}, match=match)]


def _queue() -> Any:
    """A run that comes while another one works waits: it finds all up to date, or the new data."""
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy

    return ConcurrencyLimitStrategy.ENQUEUE


def _ensure_pool(name: str) -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))
            print(f"made the process work pool '{name}'")


def _told() -> str:
    return f"the address in {VARIABLE}" if os.environ.get(VARIABLE) else f"nobody ({VARIABLE} is not set)"


if __name__ == "__main__":
    sys.exit(main())
