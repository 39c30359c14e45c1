"""`posttrain status`: what runs now, and what has to run again and why."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = ""


def add_arguments(_: ArgumentParser) -> None:
    """Take no arguments."""


def run(_: Namespace) -> str:
    """Read the state of the pipeline without DVC."""
    from posttrain.pipeline.status import status

    return status()
