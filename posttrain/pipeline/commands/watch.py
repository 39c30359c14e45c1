"""`posttrain watch`: the report's page in a browser, renewed while stages run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = ""


def add_arguments(parser: ArgumentParser) -> None:
    """Take a port."""
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: any free port")


def run(arguments: Namespace) -> str:
    """Serve the page until it is stopped."""
    from posttrain.pipeline.report.live import watch

    return watch(arguments.port)
