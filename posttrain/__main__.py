"""`python -m posttrain COMMAND`: check, inspect and repair a project. `COMMAND --help` shows an example of each."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path

from posttrain.arguments import parser
from posttrain.errors import ParamsError, PosttrainError, from_system
from posttrain.measure.masking import masked
from posttrain.params.formats import refuse_swollen
from posttrain.workspace import PARAMS_FILE

CALLS = {
    "accept": ("posttrain.pipeline.accept:accept", "stages", "reason"),
    "algorithms": ("posttrain.algorithms.describe:describe", "name"),
    "chat": ("posttrain.serve.chat:chat", "model", "temperature"),
    "init": ("posttrain.commands.init.project:init", "folder", "recipe"),
    "install": ("posttrain.models.packaged:install", "name"),
    "join": ("posttrain.processes.join:join", "run"),
    "judge-agreement": (
        "posttrain.commands.reward.agreement:judge_agreement",
        "table",
        "judge",
        "reward",
        "rows",
        "threshold",
    ),
    "laws": ("posttrain.laws.own:check_module", "module"),
    "merge": ("posttrain.pipeline.lock_file:merge_entries",),
    "plan": ("posttrain.commands.plan.table:plan", "stages", "model", "prompt"),
    "params": ("posttrain.checks.params_schema:describe_params", "section"),
    "replay": ("posttrain.commands.replay.rerun:replay", "run", "step"),
    "reward": ("posttrain.commands.reward.trial:reward_test", "name", "table", "options", "run", "rows"),
    "serve": ("posttrain.serve.server:serve", "model", "port", "threads"),
    "status": ("posttrain.pipeline.status:status",),
    "timings": ("posttrain.measure.timings:timings_table",),
    "tokens": ("posttrain.train.token_counts:token_counts", "table", "model", "plot"),
    "upgrade": ("posttrain.commands.init.project:upgrade", "mode"),
    "where": ("posttrain.lineage.row_copies:where", "row", "form"),
    "why": ("posttrain.lineage.explain:why", "what", "form"),
}
"""Command -> its function and the arguments that it takes; the others have a function of this file."""


def main() -> int:
    """Run one command; an error is one line, with a traceback only if POSTTRAIN_TRACEBACK is set."""
    _leave_out_folder()
    arguments = parser().parse_args()
    try:
        if Path(".dvc/config.local").is_file():
            from posttrain.pipeline.repair_dvc import follow_move

            follow_move(Path.cwd())
        print(_run_command(arguments))
    except PosttrainError as error:
        return _said(_params_error_behind(error))
    except BrokenPipeError:
        sys.stderr.close()
    except OSError as error:
        return _said(from_system(error, f"python -m posttrain {arguments.command}"))
    return 0


def _said(error: PosttrainError) -> int:
    """The exit code of an error, after one line that says it."""
    if os.environ.get("POSTTRAIN_TRACEBACK"):
        traceback.print_exc()
    print(f"error: {masked(str(error))}", file=sys.stderr)
    return 1


def _leave_out_folder() -> None:
    """Keep Python from importing a project's own folders `stages` and `flows` instead of the library's."""
    if sys.path[0] == str(Path.cwd()) != str(Path(__file__).resolve().parent.parent):
        del sys.path[0]


def _run_command(arguments: argparse.Namespace) -> str:
    """Import the command's function and call it; a command imports no more than it needs."""
    if arguments.command not in CALLS:
        return str(globals()[f"_{arguments.command}"](arguments))
    path, *names = CALLS[arguments.command]
    module, _, function = path.partition(":")
    return str(getattr(importlib.import_module(module), function)(*(getattr(arguments, name) for name in names)))


def _params_error_behind(error: PosttrainError) -> PosttrainError:
    """The mistake in params.yaml because of which DVC could not read the pipeline, if any; else the error itself."""
    cause = type(error.__cause__)
    if cause.__module__.startswith("dvc.") and cause.__module__ != "dvc.lock":  # a busy DVC is not the file's fault
        from posttrain.checks.params_schema import check_params

        try:
            check_params()
        except ParamsError as found:
            return found
    return error


def _check(_: argparse.Namespace) -> str:
    from posttrain.pipeline.package_pin import check_installed

    check_installed()
    from posttrain.checks.check_models import check_models
    from posttrain.checks.check_rows import check_rows
    from posttrain.checks.params_schema import check_params

    return "\n".join(filter(None, [check_params(), check_rows(), check_models()]))


def _run(arguments: argparse.Namespace) -> str:
    """Run a stage in this process."""
    import runpy

    from posttrain.params.params import did_you_mean
    from posttrain.params.stage_table import STAGES

    names = ["code", "report", *(one.name for one in STAGES)]
    if arguments.stage not in names:
        fix = did_you_mean(arguments.stage, names)
        raise ParamsError(what=f"no stage '{arguments.stage}'", where="python -m posttrain run", fix=fix)
    sys.argv[1:] = arguments.words
    runpy.run_module(f"stages.{arguments.stage}", run_name="__main__", alter_sys=True)
    return ""


def _repair(_: argparse.Namespace) -> str:
    from posttrain.pipeline.verify import repair

    refuse_swollen(PARAMS_FILE)
    return repair(Path.cwd()) or "nothing to repair"


def _verify(_: argparse.Namespace) -> str:
    from posttrain.pipeline.verify import verify

    refuse_swollen(PARAMS_FILE)
    return verify(Path.cwd())


def _sync(_: argparse.Namespace) -> str:
    from posttrain.pipeline.lock_check import check_and_sync

    check_and_sync(Path.cwd())
    return "dvc.lock and DVC's cache are on the disk"


def _preview(arguments: argparse.Namespace) -> str:
    from posttrain.commands.preview.text import preview

    return preview(
        arguments.table,
        arguments.model,
        rows=arguments.rows,
        style=arguments.style or ("colour" if sys.stdout.isatty() else "plain"),
        html=arguments.html,
        turns=arguments.turns,
        longest=arguments.max_tokens,
    )


def _clean(arguments: argparse.Namespace) -> str:
    from posttrain.checks.params_schema import check_params
    from posttrain.pipeline.orphaned_outputs import describe_leftovers, remove_leftovers

    if arguments.form == "list":
        return describe_leftovers()
    check_params()  # a run may start from what would be removed
    return remove_leftovers()


def _results(arguments: argparse.Namespace) -> str:
    not_current = _not_current(say_running=arguments.form != "json")
    from posttrain.report.results import results_json, results_table

    return (results_json if arguments.form == "json" else results_table)(not_current)


def _report(_: argparse.Namespace) -> str:
    from posttrain.report.results import write_report

    return write_report(_not_current(say_running=True))


def _readme(_: argparse.Namespace) -> str:
    from posttrain.report.results import write_readme

    return write_readme(_not_current())


def _not_current(*, say_running: bool = False) -> Mapping[str, str]:
    from posttrain.params.params import read
    from posttrain.params.stage_table import policies
    from posttrain.report.stale_results import staleness

    found = staleness(policies(read()))
    if say_running and found.running:
        are = "is" if len(found.running) == 1 else "are"
        print(f"{', '.join(found.running)} {are} running; of finished stages:\n", flush=True)
    return found.reasons


def _checkpoints(arguments: argparse.Namespace) -> str:
    from posttrain.commands.checkpoints import actions

    match arguments.action:
        case "resume":
            return actions.resume(arguments.stage)
        case "restart":
            return actions.restart(arguments.stage)
        case "clean":
            return actions.clean(arguments.which)
        case _:
            return actions.list_checkpoints()


def _compare(arguments: argparse.Namespace) -> str:
    import json

    from posttrain.compare.comparison import compare
    from posttrain.compare.selection import select
    from posttrain.compare.text import as_data, as_text

    found = compare(select(arguments.names, arguments.policy, arguments.score, arguments.task), arguments.against)
    return json.dumps(as_data(found), indent=2) if arguments.form == "json" else as_text(found, arguments.score)


if __name__ == "__main__":
    raise SystemExit(main())
