"""`posttrain init`: write a project outside the checkout, or upgrade it to the installed package."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from posttrain.errors import ParamsError

EXAMPLE = "my-project --recipe sft-dpo"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a folder and a recipe, or --upgrade."""
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR", help="a new or an empty folder")
    recipes = "the runs of its params.yaml: sft-dpo (default), rlvr (SFT, then GRPO with rules), or eval-only"
    parser.add_argument("--recipe", default="sft-dpo", metavar="sft-dpo|rlvr|eval-only", help=recipes)
    upgrade = "show the installed version's changes to the project in this folder"
    parser.add_argument("--upgrade", action="store_true", help=upgrade)
    parser.add_argument("--yes", action="store_true", help="apply the changes of --upgrade")


def run(arguments: Namespace) -> str:
    """Write or upgrade a project."""
    from posttrain.pipeline.commands.init.project import init, upgrade

    if arguments.upgrade:
        return upgrade("write" if arguments.yes else "show")
    if arguments.folder is None:
        raise ParamsError(what="no folder was given", where="posttrain init", fix="Give a new or an empty folder")
    return init(arguments.folder, arguments.recipe)
