"""`posttrain preview`: show rows as a model sees them, with the trained tokens in colour."""

import sys
from argparse import ArgumentParser, Namespace
from typing import Literal

from posttrain.measure.terminal import Coded

EXAMPLE = "mine/chat base/start --rows 5 --html preview.html"
DOING = "reading rows"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a table, a model and what to show."""
    parser.add_argument("table", metavar="TABLE", help="e.g. mine/chat for data/mine/chat.parquet, or the file")
    model = "a model folder, or a run such as sft/main, trained or not"
    parser.add_argument("model", metavar="MODEL", help=model)
    parser.add_argument("--rows", type=int, default=3, metavar="N", help="the number of rows; default: 3")
    parser.add_argument("--html", metavar="FILE", help="write the rows to an HTML page instead")
    turns = "the trained turns of a chat table; default: the run's, or all"
    parser.add_argument("--turns", choices=("all", "last"), help=turns)
    parser.add_argument("--max-tokens", type=int, metavar="N", help="leave out longer rows; default: the run's limit")
    parser.add_argument("--color", action="store_true", help="use colours even if the output is not a terminal")


def run(arguments: Namespace) -> str:
    """Show the rows, in colour on a terminal."""
    from posttrain.pipeline.commands.preview.text import preview
    from posttrain.pipeline.commands.target import target

    style: Literal["colour", "plain"] = "plain"
    if arguments.color or (sys.stdout.isatty() and not arguments.json):
        style = "colour"
    shown = preview(
        arguments.table,
        arguments.model,
        rows=arguments.rows,
        style=style,
        html=target(arguments.html, "preview --html", ".html") if arguments.html else None,
        turns=arguments.turns,
        longest=arguments.max_tokens,
    )
    return Coded(shown) if style == "colour" and not arguments.html else shown
