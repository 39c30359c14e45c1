"""`posttrain watch`: show the report's page in a browser and update it while stages run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = ""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: a port."""
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: any free port")


def run(arguments: Namespace) -> str:
    """Serve the page until stopped."""
    from posttrain.pipeline.report.live import watch

    return watch(arguments.port)
