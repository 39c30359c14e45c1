"""`python -m flows.sweep NAME -S KEY=VALUE,VALUE ...`: settings times seeds, each as a DVC experiment, several at once.

What is done is told by DVC's experiments: the same command again goes on where the last one was ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flows import arguments, server
from flows.graph import Reading, find_root, stale
from flows.pipeline import terminated
from flows.plan import (
    Random,
    Sweep,
    Trial,
    check_committed,
    check_trials,
    checked_sweep_name,
    read_sweep,
    shown,
    trials,
)
from flows.slots import devices
from flows.untracked import untracked_inputs
from posttrain.compare.experiments import experiments, git
from posttrain.errors import ParamsError, PosttrainError
from posttrain.params import check

FOLDER = Path("sweeps")
MOST_JOBS = 4


def main(words: list[str] | None = None) -> int:
    """Command line; 0 when every experiment is there, 1 when one failed, 128 + signal when it was interrupted."""
    options = _parser().parse_args(words)
    signal.signal(signal.SIGTERM, terminated)
    try:
        return _run(options)
    except PosttrainError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m flows.sweep",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="Afterwards `python -m posttrain compare NAME` says which setting is better. More in docs/compare.md.",
    )
    parser.add_argument("name", help="the sweep's name, or its file (sweeps/NAME.yaml, read where no -S is given)")
    parser.add_argument(
        "-S", "--set", action="append", default=[], metavar="KEY=V,V", help="a key with its values; all combinations"
    )
    parser.add_argument(
        "--seeds", type=arguments.counts, default=[], metavar="N,N", help="each setting is run with each of these"
    )
    parser.add_argument(
        "--seed-keys", default="", metavar="KEY,KEY", help="where a seed is put; default: what is swept"
    )
    parser.add_argument(
        "--random", type=arguments.count, metavar="N", help="N random draws of the values instead of all"
    )
    parser.add_argument(
        "--targets", default="", metavar="STAGE,STAGE", help="stages to run; default: the whole pipeline"
    )
    parser.add_argument(
        "--jobs", type=arguments.count, help=f"experiments at once; default: one per GPU, or per core up to {MOST_JOBS}"
    )
    parser.add_argument("--plan", action="store_true", help="check everything, say what would be run, and run nothing")
    return parser


def _run(options: argparse.Namespace) -> int:
    root = find_root(Path.cwd())
    os.chdir(root)
    name, sweep = _sweep(options)
    check_committed("sweep", "Commit them, so that each experiment says what it was made from: git commit -a")
    found = trials(name, sweep)
    check_trials(found)
    if options.plan:
        Reading(root, sweep.targets).stages  # noqa: B018  refuses targets that are none
    done = _done()
    pending = [one for one in found if one.name not in done]
    for one in found if options.plan else []:
        print(f"{one.name}  {'done' if one.name in done else 'to run'}  {shown(one)}")
    print(
        f"sweep {name}: {len(found)} experiments, {len(found) - len(pending)} done, {len(pending)} to run", flush=True
    )
    untracked = untracked_inputs(one.overrides for one in pending)
    for path in untracked:
        print(f"{path} is neither in git nor in DVC: each experiment gets a copy of it (`dvc add {path}` tracks it)")
    if options.plan or not pending:
        return 0
    code = _run_pending(root, name, sweep, pending, untracked, options.jobs)
    if code == 0:
        print(f"All are there. Which is better: python -m posttrain compare {name}")
    return code


def _run_pending(
    root: Path, name: str, sweep: Sweep, pending: Sequence[Trial], untracked: Sequence[str], jobs: int | None
) -> int:
    home = server.prepare(root)
    temporary = server.connect(home)
    reading = Reading(root, sweep.targets)
    # Imported so late because Prefect reads its environment when it is imported; meanwhile DVC answers.
    from flows.guard import Guard
    from flows.trials import Bench, recorded

    if temporary is not None:
        temporary.wait()
    gpus = max((stage.needs.gpus for stage in reading.stages), default=0)
    jobs = jobs or (max(1, len(devices()) // gpus) if gpus else min(MOST_JOBS, os.cpu_count() or 1))
    # What all experiments share and nobody has made yet is made once, by the first, and found by the others.
    warm_up = 1 if stale(reading.stages) else 0
    with Guard() as guard:
        state = recorded(name, Bench(root, pending, sweep.targets, untracked, gpus, guard), jobs, warm_up)
    if state.is_completed():
        return 0
    print(state.message, file=sys.stderr)
    return 128 + signal.SIGINT if state.is_cancelled() else 1


def _done() -> set[str]:
    """The experiments of this commit; those of another one are not the same work."""
    head = git("rev-parse", "HEAD").strip()
    return {one.name for one in experiments() if one.baseline == head}


def _sweep(options: argparse.Namespace) -> tuple[str, Sweep]:
    """The sweep that the command line describes, or its file."""
    if not options.set:
        file = Path(options.name) if options.name.endswith((".yaml", ".yml")) else FOLDER / f"{options.name}.yaml"
        if not file.is_file() and not options.seeds:
            fix = "Write the file, or give the values: -S online.runs.grpo.kl.beta=0.02,0.1 --seeds 1,2,3"
            raise ParamsError(what="there is no such file", where=str(file), fix=fix)
        if file.is_file():
            return checked_sweep_name(file.stem), read_sweep(file)
    grid: dict[str, Any] = dict(_values(word) for word in options.set)
    given: dict[str, Any] = {
        "seeds": options.seeds,
        "seed_keys": _parts(options.seed_keys),
        "targets": _parts(options.targets),
    }
    if options.random and grid:
        given["random"] = Random(draws=options.random, over=grid)
    elif grid:
        given["grid"] = grid
    return checked_sweep_name(options.name), check(Sweep, given, where="sweep", file="the command line")


def _values(word: str) -> tuple[str, list[Any]]:
    """`KEY=1,2` as the key and its values, each read as YAML; lists and mappings are for a file."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    key, equals, text = word.partition("=")
    if not equals or not text or any(mark in text for mark in "[]{}"):
        fix = f"Write KEY=VALUE,VALUE, or put lists and mappings into {FOLDER}/NAME.yaml"
        raise ParamsError(what=f"'{word}' is no key with values", where="-S", fix=fix)
    try:
        return key, [YAML(typ="safe", pure=True).load(part) for part in text.split(",")]
    except YAMLError as error:
        fix = "Write KEY=VALUE,VALUE"
        raise ParamsError(what=f"'{word}' has a value that YAML does not admit", where="-S", fix=fix) from error


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


if __name__ == "__main__":
    sys.exit(main())
