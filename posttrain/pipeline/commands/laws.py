"""`posttrain laws`: check the mathematical laws on surrogates and losses in the user's module."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.pipeline.commands.line import Document

EXAMPLE = "my_losses"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: a module."""
    parser.add_argument("module", metavar="MODULE", help="e.g. my_losses for custom/my_losses.py")
    parser.add_argument("--all", action="store_true", help="show laws that hold, too")


def run(arguments: Namespace) -> str:
    """Check the module."""
    from posttrain.laws.own import check_module

    text = check_module(arguments.module, as_json=arguments.json, every=arguments.all)
    return Document(text) if arguments.json else text
