"""Run the pipeline, an experiment or a sweep on a schedule, on new data, or on workers.

Every failure is posted to the URL in POSTTRAIN_WEBHOOK. See docs/flows.md.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from posttrain.errors import PipelineError, PosttrainError
from posttrain.isolation.library import python_path
from posttrain.locks import hold
from posttrain.measure.terminal import escaped
from posttrain.measure.text_table import FoldedHelp
from posttrain.pipeline.by_name import flows_package
from posttrain.settings.params import nearest

from . import arguments, data_watcher, deploy_parameters, environment, server, temporary_server
from .graph import find_root
from .notify import VARIABLE, webhook
from .sweep_config import check_committed

EXAMPLE = "serve --cron '0 3 * * *'"


def main(words: list[str] | None = None) -> int:
    """Run the command line. `serve` and `watch` run until interrupted."""
    return run(parser().parse_args(words))


def run(options: argparse.Namespace) -> int:
    """Run one command and return the exit code."""
    # A script's shell starts `... &` with SIGINT ignored, and SIGTERM ends the service by SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        root = find_root(Path.cwd())
        if getattr(options, "watch", None):
            options.watch = data_watcher.project_path(root, options.watch)
        os.chdir(root)
        home = server.prepare(root)
        {"serve": _serve, "pool": _pool, "watch": _watch, "alert": _alert}[options.action](root, home, options)
    except PosttrainError as error:
        print(escaped(f"error: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 0
    return 0


def parser() -> argparse.ArgumentParser:
    """Return the command line with all commands."""
    parser = argparse.ArgumentParser(prog="posttrain deploy", description=__doc__, formatter_class=FoldedHelp)
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the commands."""
    commands = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    serve = _add(
        commands, "serve", "run the pipeline from this process: on a schedule or on new data", "--cron '0 3 * * *'"
    )
    pool = _add(commands, "pool", "run the pipeline on the workers of a work pool", "gpus --every 3600")
    pool.add_argument(
        "pool",
        metavar="POOL",
        help="the work pool; it is created if none has a similar name",
    )
    pool.add_argument("--new", action="store_true", help="create the pool even if another has a similar name")
    for command in (serve, pool):
        deploy_parameters.add_arguments(command)
        command.add_argument("--name", default="scheduled", help="the deployment's name; default: scheduled")
        schedule = command.add_mutually_exclusive_group()
        schedule.add_argument("--cron", type=arguments.cron, help="run on this schedule, e.g. '0 3 * * *'")
        schedule.add_argument("--every", type=arguments.seconds, metavar="SECONDS", help="run at this interval")
        schedule.add_argument("--rrule", metavar="RULE", help="run by this RRule, e.g. 'FREQ=WEEKLY;BYDAY=MO;BYHOUR=3'")
        command.add_argument(
            "--watch", type=Path, metavar="FOLDER", help="also run when a file there is new or changed"
        )
    watch = _add(commands, "watch", "send Prefect an event for new data, for a deployment on a work pool", "my/data")
    watch.add_argument("watch", type=Path, metavar="FOLDER", help="the folder to check for new and changed files")
    _add(commands, "alert", "let Prefect's server post failures to POSTTRAIN_WEBHOOK, also of hosts that died", "")
    for command in (serve, watch):
        command.add_argument(
            "--look-every",
            type=arguments.seconds,
            default=5.0,
            metavar="SECONDS",
            help="check the folder at this interval; default: 5",
        )


def _add(commands: Any, name: str, does: str, example: str) -> argparse.ArgumentParser:
    """Return a command with its help and an example of its arguments."""
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=does, description=does, epilog=f"example: posttrain deploy {name} {example}".rstrip()
    )
    return parser


def _serve(root: Path, home: Path, options: argparse.Namespace) -> None:
    what, note = deploy_parameters.deployed(options), _webhook_note()
    _hold_name(home, what.flow, options.name)
    temporary = temporary_server.connect(home)
    arguments.check_schedule(options.cron, options.rrule)
    if temporary is not None:
        temporary.wait()
    environment.require(what.parameters.get("env", {}))
    if "PYTHONPATH" not in os.environ:
        os.environ["PYTHONPATH"] = python_path()  # for the processes of the runs
    from . import deployed
    from .serving import serve

    stop = threading.Event()
    if options.watch:
        watcher = data_watcher.FolderWatcher(options.watch)
        watching = (watcher, options.look_every, stop, data_watcher.emit_changed)
        threading.Thread(target=data_watcher.watch, args=watching, daemon=True).start()
    print(f"serving {what.flow}/{options.name} in {root}; {note}", flush=True)
    print(f"schedule: {_schedule(options)}. {_pages(temporary=temporary is not None)}", flush=True)
    _say_notes(what, options)
    try:
        # This process limits the runs, and not the server, which would count a killed run for minutes.
        serve(
            getattr(deployed, what.flow),
            options.name,
            limit=1,
            cron=options.cron,
            interval=options.every,
            rrule=options.rrule,
            triggers=_triggers(options),
            parameters=what.parameters,
        )
    finally:
        stop.set()


def _pool(root: Path, home: Path, options: argparse.Namespace) -> None:
    deploy_parameters.checked_name(options.pool, "work pool", "deploy pool", "deploy pool gpus")
    what = deploy_parameters.deployed(options)
    _hold_name(home, what.flow, options.name)
    _need_server(home)
    arguments.check_schedule(options.cron, options.rrule)
    environment.require(what.parameters.get("env", {}))
    _ensure_pool(options.pool, new=options.new)
    _say_notes(what, options)
    from prefect import Flow
    from prefect.client.schemas.objects import ConcurrencyLimitConfig

    # A project of `posttrain init` has no flows/: its hosts import the package that they have installed.
    source: Any = Flow.from_source(source=str(root), entrypoint=f"{flows_package(root)}.deployed.{what.flow}")
    source.deploy(
        name=options.name,
        work_pool_name=options.pool,
        cron=options.cron,
        interval=options.every,
        rrule=options.rrule,
        triggers=_triggers(options) or None,
        parameters=what.parameters,
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=_enqueue()),
        print_next_steps=False,
        ignore_warnings=True,
    )
    print(f"{what.flow}/{options.name} is deployed to the pool '{options.pool}'; schedule: {_schedule(options)}.")
    print(f"On each host, in {root}:")
    print(f'  export PREFECT_API_URL={os.environ["PREFECT_API_URL"]} {server.AUTH}="$(cat {home / "login"})"')
    print(f"  prefect worker start --pool {options.pool}")
    if options.watch:
        print(f"  posttrain deploy watch {options.watch}    # once, where the data arrives")


def _hold_name(home: Path, flow: str, name: str) -> None:
    """Keep another `serve` from taking over a deployment that a process serves: Prefect would replace it silently."""
    try:
        hold(home / f"{flow}-{name}.lock", f"the deployment {flow}/{name}", patience_s=0)
    except PipelineError as error:
        fix = "Give this deployment another name with --name, or stop that process"
        raise PipelineError(what=error.what, where="--name", fix=fix) from error


def _schedule(options: argparse.Namespace) -> str:
    """Return when the runs start, in words."""
    given = [f"every {options.every:g} s, first after that time"] if options.every else []
    given += [f"'{rule}', in UTC" for rule in (options.cron, options.rrule) if rule]
    given += [f"new data in {options.watch}"] * bool(options.watch)
    return ", and ".join(given) or "none, so start runs on Prefect's pages or with `prefect deployment run`"


def _pages(*, temporary: bool) -> str:
    """Return where Prefect's pages are. `temporary`: on a server that ends with this process."""
    pages = os.environ["PREFECT_API_URL"].removesuffix("/api")
    ends = " until this command ends (`posttrain server` starts one that stays)" if temporary else ""
    return f"Prefect's pages: {pages}{ends}"


def _say_notes(what: deploy_parameters.Deployed, options: argparse.Namespace) -> None:
    """Say what the runs will need, and which earlier deployment this one replaces."""
    _say_replaced(what, options.name, getattr(options, "pool", None))
    if what.flow == "sweep" or "set" in what.parameters:
        try:
            check_committed("deploy", "Commit before the first run, which otherwise starts nothing: git commit -a")
        except PosttrainError as error:
            print(escaped(f"note: {error}"), flush=True)
    if options.watch and not Path(options.watch).is_dir():
        note = f"note: {options.watch} is not on this host. The host that runs `posttrain deploy watch` needs it"
        print(escaped(note), flush=True)


def _say_replaced(what: deploy_parameters.Deployed, name: str, pool: str | None) -> None:
    """Say which earlier deployment of the same name this one replaces. `pool`: its work pool; None if it is served."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        try:
            old = client.read_deployment_by_name(f"{what.flow}/{name}")
        except ObjectNotFound:
            return
    if (before := {key: value for key, value in old.parameters.items() if value}) != {
        key: value for key, value in what.parameters.items() if value
    }:
        print(f"it replaces the earlier {what.flow}/{name} with the parameters {before}", flush=True)
    if old.work_pool_name != pool:
        moved = f"{what.flow}/{name} moves from {_place(old.work_pool_name)} to {_place(pool)}"
        print(f"{moved}; --name NAME makes another deployment", flush=True)


def _place(pool: str | None) -> str:
    return "the process that served it" if pool is None else f"the pool '{pool}'"


def _watch(_: Path, home: Path, options: argparse.Namespace) -> None:
    watcher = data_watcher.FolderWatcher(options.watch)
    _need_server(home)
    data_watcher.watch(watcher, options.look_every, threading.Event(), data_watcher.emit_changed)


def _alert(_: Path, home: Path, __: argparse.Namespace) -> None:
    _need_server(home)
    from . import alerts

    print(alerts.make())


def _need_server(home: Path) -> None:
    """Raise without a permanent server, because workers and events need one that outlives this command."""
    url = server.find(home)
    if url is None:
        raise PipelineError(
            what="no Prefect server is running",
            where="PREFECT_API_URL",
            fix="Start one: posttrain server",
        )
    server.attach(home, url)


def _triggers(options: argparse.Namespace) -> list[Any]:
    if not options.watch:
        return []
    from prefect.events import DeploymentEventTrigger

    match: Any = {"prefect.resource.id": data_watcher.resource_id(options.watch)}
    return [DeploymentEventTrigger(name=f"new data in {options.watch}", expect={data_watcher.EVENT}, match=match)]


def _enqueue() -> Any:
    """Return the setting that makes a run wait for the one in progress.

    It then uses the new data, or has nothing to do.
    """
    from prefect.client.schemas.objects import ConcurrencyLimitStrategy

    return ConcurrencyLimitStrategy.ENQUEUE


def _ensure_pool(name: str, *, new: bool) -> None:
    """Create a work pool if the server has none of this name. A name that is probably misspelt needs `new`."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        with contextlib.suppress(ObjectNotFound):
            client.read_work_pool(name)
            return
        if (near := nearest(name, [pool.name for pool in client.read_work_pools()])) and not new:
            fix = f"Did you mean '{near}'? If not, `--new` creates '{name}'"
            raise PipelineError(what=f"no work pool '{name}'", where="deploy pool", fix=fix)
        client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    print(f"created the process work pool '{name}'")


def _webhook_note() -> str:
    return f"failures are posted to {VARIABLE}" if webhook() else f"{VARIABLE} is not set"


if __name__ == "__main__":
    sys.exit(main())
