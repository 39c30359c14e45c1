"""`posttrain track`: show runs in TensorBoard, MLflow, Weights & Biases or trackio."""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

EXAMPLE = "--to tensorboard,mlflow --follow online/grpo"
VARIABLE = "POSTTRAIN_TRACK"
USUAL = Path(".venv-track/bin/python")
"""The default Python of an environment with the trackers, which need other package versions than posttrain."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: runs and trackers."""
    runs = "e.g. online/grpo, or the label of an evaluated model; default: every run that has a curve"
    parser.add_argument("runs", nargs="*", metavar="RUN", help=runs)
    to = os.environ.get(VARIABLE) or "tensorboard"
    trackers = f"tensorboard, mlflow, wandb or trackio, or several with commas (default: ${VARIABLE}, or tensorboard)"
    parser.add_argument("--to", default=to, metavar="TRACKER", help=trackers)
    follow = "continue until the given runs have ended; without names, until interrupted"
    parser.add_argument("--follow", action="store_true", help=follow)
    parser.add_argument("--project", default=Path.cwd().name, help="the project or experiment at the tracker")
    parser.add_argument(
        "--completions", type=int, default=50, metavar="N", help="number of rows in each table of completions"
    )
    parser.add_argument(
        "--every", type=float, default=2.0, metavar="SECONDS", help="time between two checks with --follow"
    )


def run(arguments: Namespace) -> str:
    """Push the runs."""
    from posttrain.isolation.library import library_environment
    from posttrain.pipeline.track.push import Plan, missing, push

    trackers = [name.strip() for name in arguments.to.split(",") if name.strip()]
    if missing(trackers) and USUAL.is_file() and not USUAL.parent.samefile(Path(sys.executable).parent):
        words = [str(USUAL), "-P", "-m", "posttrain", *sys.argv[1:]]
        os.execve(USUAL, words, library_environment())
    plan = Plan(
        arguments.project, trackers, arguments.runs, arguments.follow, arguments.every, max(0, arguments.completions)
    )
    return push(plan)
