"""`posttrain push`: a policy's model and its card, to the Hugging Face Hub."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "grpo --to hf:OWNER/NAME --dry-run"


def add_arguments(parser: ArgumentParser) -> None:
    """Take a policy and where it goes."""
    parser.add_argument("policy", metavar="POLICY", help="a label of evaluate.policies, or its model, e.g. online/grpo")
    parser.add_argument("--to", required=True, metavar="hf:OWNER/NAME", help="the repository, which is made if need be")
    parser.add_argument("--public", action="store_true", help="make a new repository public; default: private")
    parser.add_argument("--dry-run", action="store_true", help="show the files and the card, and upload nothing")


def run(arguments: Namespace) -> str:
    """Push the model."""
    from posttrain.commands.push.upload import push

    return push(
        arguments.policy,
        arguments.to,
        "public" if arguments.public else "private",
        "show" if arguments.dry_run else "upload",
    )
