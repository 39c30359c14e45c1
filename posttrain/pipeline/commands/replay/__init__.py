"""`posttrain replay`: train a finished run again on its stored rollouts."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = "online/grpo --step 40"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments: a run and its last step."""
    parser.add_argument("run", metavar="RUN", help="a run of online or distill, e.g. online/grpo")
    parser.add_argument("--step", type=int, help="the last step to repeat, numbered as in plots/; default: all")


def run(arguments: Namespace) -> str:
    """Train again with a stage's CPU instructions, which must be set before torch is imported."""
    from posttrain.pipeline.by_name import prepare_process

    prepare_process()
    from posttrain.pipeline.commands.replay.rerun import replay

    return replay(arguments.run, arguments.step)
