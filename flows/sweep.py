"""`posttrain sweep NAME -S KEY=VALUE,VALUE ...`: run settings times seeds as DVC experiments, several at once.

DVC's experiments record what is done, so the same command resumes an interrupted sweep.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from posttrain.errors import ParamsError, PosttrainError
from posttrain.locks import hold
from posttrain.measure.terminal import escaped
from posttrain.measure.text_table import FoldedHelp
from posttrain.pipeline.compare.experiments import TIMES

from . import arguments, server, temporary_server
from .graph import find_root, is_posttrain_pipeline
from .pipeline import raise_exit
from .sweep_config import Random, Sweep, check_sweep, checked_sweep_name, described, read_sweep
from .sweep_page import write_page
from .sweep_plan import MAX_JOBS, Plan, plan_sweep
from .sweep_start import Start

EXAMPLE = (
    "kl -S online.runs.grpo.kl.beta=0.02,0.5 --seeds 1,2,3\n\n"
    "Afterwards `posttrain compare NAME` says which setting is better. More in docs/results.md."
)
FOLDER = Path("sweeps")


def main(words: list[str] | None = None) -> int:
    """Run the command line. Return 0 if every experiment has run, 1 if one failed, 128 + signal if interrupted."""
    return run(parser().parse_args(words))


def run(options: argparse.Namespace) -> int:
    """Run the sweep and return the exit code."""
    signal.signal(signal.SIGTERM, raise_exit)
    try:
        return _run(options)
    except PosttrainError as error:
        print(escaped(f"error: {error}"), file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = argparse.ArgumentParser(
        prog="posttrain sweep",
        description=__doc__,
        formatter_class=FoldedHelp,
        epilog=f"example: posttrain sweep {EXAMPLE}",
    )
    add_arguments(parser)
    return parser


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments: a name, values and seeds."""
    parser.add_argument("name", metavar="NAME", help="the sweep's name; without -S the file sweeps/NAME.yaml is read")
    parser.add_argument(
        "-S",
        "--set",
        action="append",
        default=[],
        metavar="KEY=V,V",
        help="a key with its values; all combinations of the keys are run",
    )
    parser.add_argument(
        "--seeds",
        **arguments.NUMBERS,
        help="run each setting with each of these seeds; default: the file's",
    )
    parser.add_argument(
        "--seed-keys",
        **arguments.NAMES,
        metavar="KEY,KEY",
        help="the keys to set to the seed; default: `seed` of swept runs, or of all runs without -S",
    )
    parser.add_argument(
        "--random",
        type=arguments.count,
        metavar="N",
        help="run N random draws of the values instead of all combinations",
    )
    parser.add_argument(
        "--targets",
        **arguments.NAMES,
        metavar="STAGE,STAGE",
        help="the stages to run; default: the file's, or the whole pipeline",
    )
    parser.add_argument(
        "--jobs",
        type=arguments.count,
        metavar="N",
        help=f"run N experiments at once; default: one per GPU, or per core up to {MAX_JOBS}",
    )
    parser.add_argument("--plan", action="store_true", help="check everything, list the experiments, and train nothing")


def plan_data(options: argparse.Namespace) -> dict[str, Any]:
    """Return the plan of the sweep as data: its targets, and each experiment with its settings and its state."""
    _, plan = _planned(options)
    experiments = [
        {
            "name": trial.name,
            "done": trial.name in plan.done,
            "again": plan.again.get(trial.name),
            "settings": dict(trial.overrides),
        }
        for trial in plan.planned
    ]
    return {"sweep": plan.name, "targets": [*plan.targets], "jobs": plan.jobs(options.jobs), "experiments": experiments}


def _planned(options: argparse.Namespace) -> tuple[Path, Plan]:
    root = find_root(Path.cwd())
    os.chdir(root)
    return root, plan_sweep(root, *named_sweep(options))


def _run(options: argparse.Namespace) -> int:
    root, plan = _planned(options)
    for trial in plan.planned if options.plan else []:
        why = f"  (again: {plan.again[trial.name]})" if trial.name in plan.again else ""
        print(f"{trial.name}  {'done' if trial.name in plan.done else 'to run'}  {described(trial)}{why}")
    total, left = len(plan.planned), len(plan.pending)
    print(f"sweep {plan.name}: {total} experiments, {total - left} done, {left} to run", flush=True)
    if options.plan or not plan.pending:
        return 0
    hold(root / TIMES / f"{plan.name}.lock", f"the sweep {plan.name}")
    code = _run_pending(root, plan, options.jobs)
    if code == 0:
        policy = f" --policy {plan.measured[-1]}" if plan.measured else ""
        if is_posttrain_pipeline(root):
            print(write_page(plan.name, plan.measured))
        print(f"All have run. Which is better: posttrain compare {plan.name}{policy}")
        print(f"What a setting changes over all others: posttrain compare {plan.name}{policy} --factor NAME")
    return code


def _run_pending(root: Path, plan: Plan, jobs: int | None) -> int:
    start = Start.of(root)
    home = server.prepare(root)
    temporary = temporary_server.connect(home)
    # Imported late, because Prefect reads its environment when it is imported.
    from .orphan_guard import OrphanGuard
    from .sweep_runner import SweepRunner, run_sweep

    if temporary is not None:
        temporary.wait()
    with OrphanGuard() as guard:
        runner = SweepRunner(start, plan.pending, plan.targets, plan.gpus, guard)
        state = run_sweep(plan.name, runner, plan.jobs(jobs), plan.warm_up)
    if state.is_completed():
        return 0
    print(escaped(str(state.message)), file=sys.stderr)
    return 128 + signal.SIGINT if state.is_cancelled() else 1


def named_sweep(options: argparse.Namespace) -> tuple[str, Sweep]:
    """Return the sweep on the command line, or its file with seeds and targets from the command line."""
    given = {
        "seeds": options.seeds,
        "seed_keys": options.seed_keys,
        "targets": options.targets,
    }
    data: dict[str, Any] = {key: value for key, value in given.items() if value}
    if not options.set:
        if options.random:
            fix = "Give the values, -S KEY=VALUE,VALUE, or write `random: {draws: N, over: ...}` into the file"
            raise ParamsError(what="there are no values to draw from", where="--random", fix=fix)
        file = Path(options.name) if options.name.endswith((".yaml", ".yml")) else FOLDER / f"{options.name}.yaml"
        if not file.is_file() and not options.seeds:
            fix = "Write the file, or give the values: -S online.runs.grpo.kl.beta=0.02,0.1 --seeds 1,2,3"
            raise ParamsError(what="file not found", where=str(file), fix=fix)
        if file.is_file():
            return checked_sweep_name(file.stem), read_sweep(file, data)
    grid = once(values_of(word) for word in options.set)
    if (unread := FOLDER / f"{options.name}.yaml").is_file():
        print(escaped(f"note: {unread} is not read, because -S is given"), file=sys.stderr)
    if options.random:
        data["random"] = Random(draws=options.random, over=grid)
    elif grid:
        data["grid"] = grid
    return checked_sweep_name(options.name), check_sweep(data, "the command line")


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """Return settings as a mapping. Reject a key that is given twice."""
    settings: dict[str, Any] = {}
    for key, value in pairs:
        if key in settings:
            raise ParamsError(what=f"'{key}' is given twice", where="-S", fix="Give each key once")
        settings[key] = value
    return settings


def values_of(word: str) -> tuple[str, list[Any]]:
    """Return `KEY=1,2` as the key and its values, each parsed as YAML. Lists and mappings belong in a file."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    key, equals, text = word.partition("=")
    if not equals or not text or any(mark in text for mark in "[]{}"):
        fix = f"Write KEY=VALUE,VALUE, or put lists and mappings into {FOLDER}/NAME.yaml"
        raise ParamsError(what=f"'{word}' is not KEY=VALUES", where="-S", fix=fix)
    try:
        return key, [YAML(typ="safe", pure=True).load(part) for part in text.split(",")]
    except YAMLError as error:
        fix = "Write KEY=VALUE,VALUE"
        raise ParamsError(what=f"'{word}' has a value that is not valid YAML", where="-S", fix=fix) from error


if __name__ == "__main__":
    sys.exit(main())
