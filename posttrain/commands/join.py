"""`posttrain join`: the processes of another host for a run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "sft/main"


def add_arguments(parser: ArgumentParser) -> None:
    """Take a run."""
    parser.add_argument("run", metavar="STAGE/RUN", help="the stage and the run that the first host runs")


def run(arguments: Namespace) -> str:
    """Join the run (docs/processes.md)."""
    from posttrain.processes.join import join

    return join(arguments.run)
