"""`posttrain sweep NAME -S KEY=VALUE,VALUE ...`: run settings times seeds as DVC experiments, several at once.

DVC's experiments record what is done, so the same command resumes an interrupted sweep.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from posttrain.errors import ParamsError, PipelineError, PosttrainError
from posttrain.locks import hold
from posttrain.measure.terminal import escaped
from posttrain.measure.text_table import FoldedHelp
from posttrain.pipeline.compare.experiments import TIMES, experiments
from posttrain.pipeline.lineage.kept_inputs import require_kept
from posttrain.pipeline.lock.git import git, git_or_none
from posttrain.pipeline.params.params_file import read
from posttrain.pipeline.params.seeds import SEED
from posttrain.pipeline.params.stage_table import evaluated
from posttrain.pipeline.workspace import PARAMS_FILE
from posttrain.settings.params import check

from . import arguments, server
from .gpu_slots import devices
from .graph import GraphReader, Stage, find_root, is_posttrain_pipeline, stale
from .pipeline import raise_exit
from .sweep_config import (
    Random,
    Sweep,
    Trial,
    check_committed,
    check_trials,
    checked_sweep_name,
    described,
    read_sweep,
    trials,
)
from .sweep_page import write_page
from .sweep_start import Start
from .sweep_targets import closure, is_named, missing_evaluations

EXAMPLE = (
    "kl -S online.runs.grpo.kl.beta=0.02,0.5 --seeds 1,2,3\n\n"
    "Afterwards `posttrain compare NAME` says which setting is better. More in docs/results.md."
)
FOLDER = Path("sweeps")
MAX_JOBS = 4


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
        type=arguments.counts,
        default=[],
        metavar="N,N",
        help="run each setting with each of these seeds; default: the file's",
    )
    parser.add_argument(
        "--seed-keys",
        default="",
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
        default="",
        metavar="STAGE,STAGE",
        help="the stages to run; default: the file's, or the whole pipeline",
    )
    parser.add_argument(
        "--jobs",
        type=arguments.count,
        metavar="N",
        help=f"run N experiments at once; default: one per GPU, or per core up to {MAX_JOBS}",
    )
    parser.add_argument("--plan", action="store_true", help="check everything, list the experiments, and run nothing")


def _run(options: argparse.Namespace) -> int:
    root = find_root(Path.cwd())
    os.chdir(root)
    name, sweep = named_sweep(options)
    check_committed("sweep", "Commit them, so that each experiment says what it was made from: git commit -a")
    planned = trials(name, sweep)
    check_trials(planned)
    require_kept("sweep", (experiment.overrides for experiment in planned))
    check_free(root, name)
    stages, targets, measured = _to_run(root, sweep)
    done = _finished_experiments()
    pending = [experiment for experiment in planned if experiment.name not in done]
    for trial in planned if options.plan else []:
        print(f"{trial.name}  {'done' if trial.name in done else 'to run'}  {described(trial)}")
    counts = f"{len(planned)} experiments, {len(planned) - len(pending)} done, {len(pending)} to run"
    print(f"sweep {name}: {counts}", flush=True)
    if options.plan or not pending:
        return 0
    hold(root / TIMES / f"{name}.lock", f"the sweep {name}")
    code = _run_pending(root, name, stages, targets, pending, options.jobs)
    if code == 0:
        policy = f" --policy {measured[-1]}" if measured else ""
        if is_posttrain_pipeline(root):
            print(write_page(name, measured))
        print(f"All have run. Which is better: posttrain compare {name}{policy}")
        print(f"What a setting changes over all others: posttrain compare {name}{policy} --factor NAME")
    return code


def check_free(root: Path, name: str) -> None:
    """Reject a sweep with the name of a policy, which `compare` would confuse with it, or of a branch or tag."""
    if is_posttrain_pipeline(root) and name in (runs := evaluated(read())) | {run.model: run for run in runs.values()}:
        what, fix = f"'{name}' is the name of a policy in {PARAMS_FILE}", "Choose another name"
        raise PipelineError(what=what, where="sweep", fix=fix)
    if git_or_none("rev-parse", "--verify", "--quiet", "--end-of-options", name) is not None:
        raise PipelineError(what=f"git has a branch, tag or commit '{name}'", where="sweep", fix="Choose another name")


def _to_run(root: Path, sweep: Sweep) -> tuple[list[Stage], list[str], list[str]]:
    """Return the stages per experiment, the targets with evaluations of trained models, and those policies.

    If the sweep has no targets, there are no policies.
    """
    stages, targets = GraphReader(root).stages, list(sweep.targets)
    if not targets:
        return stages, targets, []
    known = all(any(is_named(stage.name, [target]) for stage in stages) for target in targets)
    # DVC itself refuses what it does not know; an output is a target too.
    ran = closure(stages, targets) if known else GraphReader(root, targets).stages
    added: list[str] = []
    if is_posttrain_pipeline(root):
        added, unmeasured = missing_evaluations(read(), ran, targets, [*sweep.swept, *sweep.seed_keys] or [SEED])
        if added:
            print(f"added to the targets, so that what is trained is also measured: {', '.join(added)}")
        for model in unmeasured:
            print(f"note: {PARAMS_FILE} has no evaluation of {model}, so `posttrain compare` will have no score of it")
    chosen = [*targets, *added]
    runs = evaluated(read()) if is_posttrain_pipeline(root) else {}
    policies = [label for label, run in runs.items() if is_named(run.stage, chosen)]
    return closure(stages, [*(stage.name for stage in ran), *added]), chosen, policies


def _run_pending(
    root: Path, name: str, stages: Sequence[Stage], targets: Sequence[str], pending: Sequence[Trial], jobs: int | None
) -> int:
    start = Start.of(root)
    home = server.prepare(root)
    temporary = server.connect(home)
    # Imported late, because Prefect reads its environment when it is imported.
    from .orphan_guard import OrphanGuard
    from .sweep_runner import SweepRunner, run_sweep

    if temporary is not None:
        temporary.wait()
    gpus = max((stage.needs.gpus for stage in stages), default=0)
    jobs = jobs or (max(1, len(devices()) // gpus) if gpus else min(MAX_JOBS, os.cpu_count() or 1))
    # The first experiment runs alone if stages are stale: the others then find the results that all share.
    warm_up = 1 if stale(stages) else 0
    with OrphanGuard() as guard:
        state = run_sweep(name, SweepRunner(start, pending, targets, gpus, guard), jobs, warm_up)
    if state.is_completed():
        return 0
    print(escaped(str(state.message)), file=sys.stderr)
    return 128 + signal.SIGINT if state.is_cancelled() else 1


def _finished_experiments() -> set[str]:
    """Return the names of this commit's experiments. Experiments of another commit ran other code."""
    head = git("rev-parse", "HEAD").strip()
    return {experiment.name for experiment in experiments() if experiment.baseline == head}


def named_sweep(options: argparse.Namespace) -> tuple[str, Sweep]:
    """Return the sweep on the command line, or its file with seeds and targets from the command line."""
    given = {
        "seeds": options.seeds,
        "seed_keys": _parts(options.seed_keys),
        "targets": _parts(options.targets),
    }
    data: dict[str, Any] = {key: value for key, value in given.items() if value}
    if not options.set:
        if options.random:
            fix = "Give the values, -S KEY=VALUE,VALUE, or write `random: {draws: N, over: ...}` into the file"
            raise ParamsError(what="there is nothing to draw from", where="--random", fix=fix)
        file = Path(options.name) if options.name.endswith((".yaml", ".yml")) else FOLDER / f"{options.name}.yaml"
        if not file.is_file() and not options.seeds:
            fix = "Write the file, or give the values: -S online.runs.grpo.kl.beta=0.02,0.1 --seeds 1,2,3"
            raise ParamsError(what="file not found", where=str(file), fix=fix)
        if file.is_file():
            return checked_sweep_name(file.stem), read_sweep(file, data)
    grid: dict[str, Any] = dict(_values(word) for word in options.set)
    if options.random:
        data["random"] = Random(draws=options.random, over=grid)
    elif grid:
        data["grid"] = grid
    return checked_sweep_name(options.name), check(Sweep, data, where="sweep", file="the command line")


def _values(word: str) -> tuple[str, list[Any]]:
    """Return `KEY=1,2` as the key and its values, each parsed as YAML. Lists and mappings belong in a file."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    key, equals, text = word.partition("=")
    if not equals or not text or any(mark in text for mark in "[]{}"):
        fix = f"Write KEY=VALUE,VALUE, or put lists and mappings into {FOLDER}/NAME.yaml"
        raise ParamsError(what=f"'{word}' is not a key with values", where="-S", fix=fix)
    try:
        return key, [YAML(typ="safe", pure=True).load(part) for part in text.split(",")]
    except YAMLError as error:
        fix = "Write KEY=VALUE,VALUE"
        raise ParamsError(what=f"'{word}' has a value that is not valid YAML", where="-S", fix=fix) from error


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    sys.exit(main())
