"""`posttrain where`: every copy of a row of data, and the runs that have read it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.commands.line import add_json

EXAMPLE = "my/data/chat.jsonl:17"


def add_arguments(parser: ArgumentParser) -> None:
    """Take what to look for."""
    parser.add_argument("row", metavar="ROW", help="its id, FILE:LINE of a file of yours, or a piece of its text")
    add_json(parser)


def run(arguments: Namespace) -> str:
    """Look for it."""
    from posttrain.lineage.row_copies import where

    return where(arguments.row, "json" if arguments.json else "words")
