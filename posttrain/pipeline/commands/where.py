"""`posttrain where`: find every copy of a row of data, and the runs that have read it."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.pipeline.commands.line import Document

EXAMPLE = "my/data/chat.jsonl:17"
DOING = "searching all tables"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: what to search for."""
    parser.add_argument("row", metavar="ROW", help="its id, FILE:LINE in your file, or a part of its text")


def run(arguments: Namespace) -> str:
    """Search for it."""
    from posttrain.pipeline.lineage.row_copies import where

    return Document(where(arguments.row, "json")) if arguments.json else where(arguments.row, "words")
