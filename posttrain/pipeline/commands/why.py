"""`posttrain why`: explain where a number comes from, and what a source row has affected."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.pipeline.commands.line import Document

EXAMPLE = "grpo.score"
DOING = "following the numbers"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: what to explain."""
    parser.add_argument(
        "what", metavar="WHAT", help="a metric's name, a number as shown, the id of a row, or FILE:LINE"
    )


def run(arguments: Namespace) -> str:
    """Explain it."""
    from posttrain.pipeline.lineage.explain import why

    return Document(why(arguments.what, "json")) if arguments.json else why(arguments.what, "words")
