"""`posttrain status`: what runs now, and what has to run again and why."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = ""


def add_arguments(_: ArgumentParser) -> None:
    """Take no arguments."""


def run(_: Namespace) -> str:
    """Read the state of the pipeline without DVC, unless another package than the project's would run it."""
    from posttrain.pipeline.lock.package_pin import check_installed
    from posttrain.pipeline.lock.status import status

    check_installed()
    return status()
