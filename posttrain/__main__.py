"""`python -m posttrain COMMAND`: what a person asks between two runs."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from posttrain.errors import PosttrainError


def main() -> int:
    """Run one command; an error of ours is one clear line, without a traceback unless asked for."""
    parser = argparse.ArgumentParser(prog="python -m posttrain", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    results = commands.add_parser("results", help="every policy with its figures, or why it has none; what to do next")
    results.add_argument("--json", action="store_const", const="json", default="words", dest="form")
    commands.add_parser("report", help="write report/report.html from what is current, also when a run has failed")
    commands.add_parser("readme", help="write the last run's results into README.md and draw its plot")
    commands.add_parser("timings", help="what the time of each stage's last run went into")
    repaired = "fix what a kill, a power cut or an edit left in DVC's files; nothing is lost"
    commands.add_parser("repair", help=repaired, description=repaired)
    verified = "read all that DVC has cached and recorded, report damage, and remove it so that `dvc repro` heals it"
    commands.add_parser("verify", help=verified, description=verified)
    synced = "check that dvc.lock names what the stages used, and have the disk keep what DVC has cached"
    commands.add_parser("sync", help=synced, description=synced)
    commands.add_parser(
        "status",
        help="which stages have to run again, and why",
        description="Which stages have to run again, and why: the files, parameters and packages that changed.",
        epilog="An answer: online@grpo: posttrain/formulas/clip.py changed; then stale because of it: evaluate@grpo",
    )
    accepted = commands.add_parser(
        "accept",
        help="take results for those of changed code, which a person vouches for",
        description="Take the results of stages for those of the present code, because it computes the same. DVC "
        "commits them, and records/ keeps what was accepted and why. Refused where parameters or tables changed too.",
        epilog="Example: python -m posttrain accept online@grpo sft --reason 'renamed a variable'",
    )
    accepted.add_argument("stages", nargs="+", metavar="STAGE", help="e.g. online@grpo, or online for all its runs")
    accepted.add_argument("--reason", required=True, help="why the results stay the same")
    commands.add_parser("check", help="check params.yaml and what its runs name, without running anything")
    _add_checkpoints(commands)
    upgraded = "bring a workspace of posttrain 0.1 to this version: show what changes, or write it with --yes"
    upgrade = commands.add_parser("upgrade", help=upgraded, description=upgraded)
    upgrade.add_argument("--yes", action="store_const", const="write", default="show", dest="mode", help="write it")
    cleaned = "remove what runs that params.yaml no longer has left: outputs, checkpoints and entries of dvc.lock"
    clean = commands.add_parser("clean", help=cleaned, description=cleaned)
    clean.add_argument(
        "--list", action="store_const", const="list", default="remove", dest="form", help="remove nothing"
    )
    merged = "settle a merge conflict in dvc.lock: each entry is that of the branch that changed it"
    commands.add_parser("merge", help=merged, description=merged)
    shown = commands.add_parser("params", help="every parameter with its type, default and meaning")
    shown.add_argument("section", nargs="?", help="one section, e.g. online")
    algorithms = commands.add_parser("algorithms", help="every algorithm, or one with its formula and settings")
    algorithms.add_argument("name", nargs="?")
    laws = commands.add_parser("laws", help="hold the surrogates and losses of a module of your own against the laws")
    laws.add_argument("module", help="e.g. my_losses for custom/my_losses.py")
    compared = commands.add_parser("compare", help="which setting is better, on the same held-out prompts")
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
    arguments = parser.parse_args()
    try:
        print(_answer(arguments))
    except PosttrainError as error:
        if os.environ.get("POSTTRAIN_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:
        sys.stderr.close()
    return 0


def _add_checkpoints(commands: Any) -> None:
    """The command `checkpoints`, with what can be done to them."""
    about = "list the checkpoints of unfinished runs: stage, step, size, age, and whether they would be resumed"
    own = commands.add_parser("checkpoints", help=f"{about}; resume, restart, clean", description=about)
    actions = own.add_subparsers(dest="action", metavar="ACTION")
    for name, does in {
        "resume": "let a stage whose code or packages were changed resume its checkpoint; a later change asks again",
        "restart": "remove the checkpoint of a stage whose code or packages were changed, so that it starts again",
    }.items():
        example = f"example: python -m posttrain checkpoints {name} online@grpo"
        action = actions.add_parser(name, help=does, description=does, epilog=example)
        action.add_argument("stage", metavar="STAGE", help="as DVC calls it, e.g. online@grpo")
    does = "remove checkpoints that no run of params.yaml would resume, never those of a running stage"
    example = "example: python -m posttrain checkpoints clean --all"
    cleaned = actions.add_parser("clean", help=does, description=does, epilog=example)
    cleaned.add_argument("--all", action="store_const", const="all", default="unused", dest="which", help="remove all")


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
