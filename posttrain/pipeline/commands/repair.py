"""`posttrain repair`: fix DVC's files after a kill, a power cut, a merge or an edit."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path

from posttrain.pipeline.commands.line import add_action, add_actions

EXAMPLE = ""
ACTIONS = {
    "verify": "read everything that DVC has cached or recorded and remove damaged files; `dvc repro` makes them again",
    "sync": "check that dvc.lock lists the inputs that the stages used, and write DVC's cache to the disk",
    "merge": "resolve a merge conflict in dvc.lock: each entry comes from the branch that changed it",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the argument: an action. The default action does all quick and safe repairs."""
    actions = add_actions(parser, "repair")
    for name, does in ACTIONS.items():
        add_action(actions, "repair", name, does)


def run(arguments: Namespace) -> str:
    """Run the action."""
    from posttrain.pipeline.lock.lock_check import check_and_sync
    from posttrain.pipeline.lock.lock_file import merge_entries
    from posttrain.pipeline.lock.verify import repair, verify
    from posttrain.pipeline.params.yaml_files import refuse_swollen
    from posttrain.pipeline.workspace import PARAMS_FILE

    match arguments.action:
        case "merge":
            return merge_entries()
        case "sync":
            check_and_sync(Path.cwd())
            return "dvc.lock and DVC's cache are on the disk"
        case action:
            refuse_swollen(PARAMS_FILE)
            return verify(Path.cwd()) if action == "verify" else repair(Path.cwd()) or "nothing to repair"
