"""`posttrain plan`: estimate the memory and disk of stages before they run, and show the time of their last run."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "sft@main online"
DOING = "estimating memory, disk and time"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: stages, and a model and prompt length to assume."""
    parser.add_argument(
        "stages", nargs="*", metavar="STAGE", help="e.g. sft@main, or sft for all its runs; default: all"
    )
    parser.add_argument("--model", metavar="FOLDER", help="plan as if every model were this one")
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="longest prompt in tokens; default: 512")


def run(arguments: Namespace) -> str:
    """Estimate the stages."""
    from posttrain.pipeline.commands.plan.table import plan
    from posttrain.pipeline.commands.plugins import say_gone

    say_gone()
    return plan(arguments.stages, arguments.model, arguments.prompt)
