"""`posttrain clean`: list or remove files that belong to no run in params.yaml."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from posttrain.pipeline.commands.line import add_action, add_actions

EXAMPLE = "--list"
DOING = "looking for files that no run needs"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: what to clean. Default: outputs and entries of dvc.lock."""
    parser.add_argument("--list", action="store_true", help="only list the outputs and entries")
    actions = add_actions(parser, "runs")
    does = "remove checkpoints that no run of params.yaml would resume, except checkpoints of running stages"
    checkpoints = add_action(actions, "clean", "checkpoints", does, "--all")
    checkpoints.add_argument("--all", action="store_true", help="remove checkpoints that a run would resume, too")


def run(arguments: Namespace) -> str:
    """Remove the files, or list them."""
    if arguments.action == "checkpoints":
        from posttrain.pipeline.commands.checkpoints.actions import clean

        return clean("all" if arguments.all else "unused")
    from posttrain.pipeline.checks.params_schema import check_params
    from posttrain.pipeline.lock.orphaned_outputs import describe_leftovers, remove_leftovers

    if arguments.list:
        return describe_leftovers()
    check_params()  # a run may start from what would be removed
    return remove_leftovers()
