"""`posttrain promote`: tag the best model in git, if a comparison shows that it is the best."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Literal

EXAMPLE = "grpo --as champion"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a policy, a name, and a reason that replaces the comparison."""
    parser.add_argument("policy", metavar="POLICY", help="a label of evaluate.policies, or its model, e.g. online/grpo")
    title = "the stage to give it, e.g. champion, as the tags POLICY@VERSION and POLICY#NAME#N of DVC's model registry"
    parser.add_argument("--as", dest="title", required=True, metavar="NAME", help=title)
    force = "promote it even if it is not better than the current model; the reason is stored in the tag"
    parser.add_argument("--force", metavar="REASON", help=force)
    parser.add_argument("--dry-run", action="store_true", help="show the tag's text without creating the tag")


def run(arguments: Namespace) -> str:
    """Promote the policy."""
    from posttrain.pipeline.commands.promote.promotion import promote

    does: Literal["tag", "show"] = "show" if arguments.dry_run else "tag"
    return promote(arguments.policy, arguments.title, arguments.force, does)
