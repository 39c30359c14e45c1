"""`posttrain accept`: keep results although their code changed."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "online@grpo sft --reason 'renamed a variable'"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: stages and a reason."""
    parser.add_argument("stages", nargs="+", metavar="STAGE", help="e.g. online@grpo, or online for all its runs")
    parser.add_argument("--reason", required=True, help="why the results stay the same; stored in records/")


def run(arguments: Namespace) -> str:
    """Accept the change."""
    from posttrain.pipeline.lock.accept import accept

    return accept(arguments.stages, arguments.reason)
