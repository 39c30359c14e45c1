"""`posttrain checkpoints`: manage the checkpoints of unfinished runs."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.numerics import set_numerics
from posttrain.pipeline.commands.line import add_action, add_actions
from posttrain.pipeline.workspace import checkpoint_path

EXAMPLE = ""
ACTIONS = {
    "resume": "let a stage resume its checkpoint although code or packages changed, until the next change",
    "restart": "remove the checkpoint of a stage whose code or packages changed, so that it starts from step 0",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: an action and a stage, or none to list everything."""
    actions = add_actions(parser, "list")
    for name, does in ACTIONS.items():
        action = add_action(actions, "checkpoints", name, does, "online@grpo")
        action.add_argument("stage", metavar="STAGE", help="its name in DVC, e.g. online@grpo")


def run(arguments: Namespace) -> str:
    """List the checkpoints, or apply the action."""
    if arguments.action == "list" and not any(checkpoint_path("").rglob("step-*")):
        return "no checkpoints"
    set_numerics()  # a checkpoint names the CPU instructions that it was made with
    from posttrain.pipeline.commands.checkpoints import actions  # imports torch

    if arguments.action == "list":
        return actions.list_checkpoints()
    return (actions.resume if arguments.action == "resume" else actions.restart)(arguments.stage)
