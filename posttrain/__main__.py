"""`python -m posttrain COMMAND`: what a person asks between two runs."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from posttrain.errors import ParamsError, PosttrainError

PLAIN = {
    "check": "check params.yaml and what its runs name, without running anything",
    "status": "which stages have to run again, and why; brings code/ up to date for this",
    "report": "write report/report.html from what is current, also when a run has failed",
    "readme": "write the last run's results into README.md and draw its plot",
    "timings": "what the time of each stage's last run went into",
    "repair": "fix what a kill, a power cut or an edit left in DVC's files; nothing is lost",
    "verify": "read all that DVC has cached and recorded, report damage, and remove it so that `dvc repro` heals it",
    "sync": "check that dvc.lock names what the stages used, and have the disk keep what DVC has cached",
    "merge": "settle a merge conflict in dvc.lock: each entry is that of the branch that changed it",
}
"""The commands without arguments."""


def main() -> int:
    """Run one command; an error of ours is one clear line, without a traceback unless asked for."""
    parser = argparse.ArgumentParser(prog="python -m posttrain", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, does in PLAIN.items():
        _add(commands, name, does)
    _add_results(commands)
    _add_care(commands)
    _add_checkpoints(commands)
    _add_reference(commands)
    arguments = parser.parse_args()
    try:
        print(_answer(arguments))
    except PosttrainError as error:
        error = _in_our_words(error)
        if os.environ.get("POSTTRAIN_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _add(commands: Any, name: str, does: str, example: str = "") -> argparse.ArgumentParser:
    """A command, its help, and an example of its arguments."""
    line = f"python -m posttrain {f'{name} {example}'.strip()}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=does, description=f"{does[0].upper()}{does[1:]}.", epilog=f"example: {line}"
    )
    return parser


def _add_results(commands: Any) -> None:
    results = _add(commands, "results", "every policy with its figures, or why it has none; what to do next", "--json")
    results.add_argument("--json", action="store_const", const="json", default="words", dest="form")
    compared = _add(commands, "compare", "which setting is better, on the same held-out prompts", "dpo grpo")
    compared.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a run of params.yaml, an experiment, a sweep (all its experiments) or 'workspace'; default: all runs",
    )
    compared.add_argument("--policy", help="which policy of the experiments, e.g. online/grpo; default: what differs")
    compared.add_argument("--against", metavar="NAME", help="compare each with this one only; default: all pairs")
    compared.add_argument("--greedy", action="store_const", const="greedy", default="sampled", dest="score")
    compared.add_argument("--json", action="store_const", const="json", default="words", dest="form")


def _add_care(commands: Any) -> None:
    """What keeps results when code, runs or versions change."""
    does = "take the results of stages for those of changed code, because a person vouches that it computes the same"
    accept = _add(commands, "accept", does, "online@grpo sft --reason 'renamed a variable'")
    accept.add_argument("stages", nargs="+", metavar="STAGE", help="e.g. online@grpo, or online for all its runs")
    accept.add_argument("--reason", required=True, help="why the results stay the same; records/ keeps it")
    does = "remove what runs that params.yaml no longer has left: outputs, checkpoints and entries of dvc.lock"
    clean = _add(commands, "clean", does, "--list")
    clean.add_argument("--list", action="store_const", const="list", default="remove", dest="form", help="only list it")
    does = "bring a workspace of posttrain 0.1 to this version: show what changes, or write it"
    upgrade = _add(commands, "upgrade", does, "--yes")
    upgrade.add_argument("--yes", action="store_const", const="write", default="show", dest="mode", help="write it")


def _add_checkpoints(commands: Any) -> None:
    """The command `checkpoints`, with what can be done to them."""
    does = "list the checkpoints of unfinished runs with their size and age; resume, restart or remove them"
    actions = _add(commands, "checkpoints", does).add_subparsers(dest="action", metavar="ACTION")
    for name, does in {
        "resume": "let a stage whose code or packages were changed resume its checkpoint; a later change asks again",
        "restart": "remove the checkpoint of a stage whose code or packages were changed, so that it starts again",
    }.items():
        action = _add(actions, name, does, "online@grpo")
        action.epilog = f"example: python -m posttrain checkpoints {name} online@grpo"
        action.add_argument("stage", metavar="STAGE", help="as DVC calls it, e.g. online@grpo")
    does = "remove checkpoints that no run of params.yaml would resume, never those of a running stage"
    cleaned = _add(actions, "clean", does)
    cleaned.epilog = "example: python -m posttrain checkpoints clean --all"
    cleaned.add_argument("--all", action="store_const", const="all", default="unused", dest="which", help="remove all")


def _add_reference(commands: Any) -> None:
    shown = _add(commands, "params", "every parameter with its type, default and meaning", "online")
    shown.add_argument("section", nargs="?", help="one section, e.g. online")
    algorithms = _add(commands, "algorithms", "every algorithm, or one with its formula and settings", "grpo")
    algorithms.add_argument("name", nargs="?")
    laws = _add(
        commands, "laws", "hold the surrogates and losses of a module of your own against the laws", "my_losses"
    )
    laws.add_argument("module", help="e.g. my_losses for custom/my_losses.py")


def _answer(arguments: argparse.Namespace) -> str:
    match arguments.command:
        case "results" | "report" | "readme":
            return _reported(arguments)
        case "timings":
            from posttrain.measure.timings import timings_table

            return timings_table()
        case "repair":
            from posttrain.verify import repair

            return repair(Path.cwd()) or "nothing to repair"
        case "verify":
            from posttrain.verify import verify

            return verify(Path.cwd())
        case "sync":
            from posttrain.settle import settle

            settle(Path.cwd())
            return "dvc.lock and DVC's cache are on the disk"
        case "compare":
            return _comparison(arguments)
        case "check":
            from posttrain.sections import check_params

            return check_params()
        case "status":
            from posttrain.status import status

            return status()
        case "accept":
            from posttrain.accept import accept

            return accept(arguments.stages, arguments.reason)
        case "clean":
            return _cleaned(arguments.form)
        case "merge":
            from posttrain.lock_entries import merge_entries

            return merge_entries()
        case "checkpoints":
            return _checkpoints(arguments)
        case "upgrade":
            from posttrain.upgrade import upgrade

            return upgrade(arguments.mode)
        case "laws":
            from posttrain.laws.own import hold

            return hold(arguments.module)
        case "params":
            from posttrain.sections import describe_params

            return describe_params(arguments.section)
        case _:
            from posttrain.algorithms.describe import describe

            return describe(arguments.name)


def _in_our_words(error: PosttrainError) -> PosttrainError:
    """What is wrong in params.yaml where DVC could not read the pipeline because of it; else the error itself."""
    cause = type(error.__cause__)
    if cause.__module__.startswith("dvc.") and cause.__module__ != "dvc.lock":  # a busy DVC is not the file's fault
        from posttrain.sections import check_params

        try:
            check_params()
        except ParamsError as found:
            return found
    return error


def _cleaned(form: str) -> str:
    from posttrain.leftovers import describe_leftovers, remove_leftovers
    from posttrain.sections import check_params

    if form == "list":
        return describe_leftovers()
    check_params()  # a run may start from what would be removed
    return remove_leftovers()


def _reported(arguments: argparse.Namespace) -> str:
    from posttrain.report.results import results_json, results_table, write_readme, write_report

    if arguments.command == "results":
        return (results_json if arguments.form == "json" else results_table)(_not_current())
    return (write_report if arguments.command == "report" else write_readme)(_not_current())


def _not_current() -> dict[str, str]:
    from posttrain.params import read
    from posttrain.report.state import not_current
    from posttrain.stage_table import policies

    return not_current(policies(read()))


def _checkpoints(arguments: argparse.Namespace) -> str:
    from posttrain import checkpoints

    match arguments.action:
        case "resume":
            return checkpoints.resume(arguments.stage)
        case "restart":
            return checkpoints.restart(arguments.stage)
        case "clean":
            return checkpoints.clean(arguments.which)
        case _:
            return checkpoints.list_checkpoints()


def _comparison(arguments: argparse.Namespace) -> str:
    import json

    from posttrain.compare.chosen import choose
    from posttrain.compare.comparison import compare
    from posttrain.compare.text import as_data, in_words

    found = compare(choose(arguments.names, arguments.policy, arguments.score), arguments.against)
    return json.dumps(as_data(found), indent=2) if arguments.form == "json" else in_words(found, arguments.score)


if __name__ == "__main__":
    raise SystemExit(main())
