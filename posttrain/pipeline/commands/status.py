"""`posttrain status`: show what is running, and what must run again and why."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

EXAMPLE = ""


def add_arguments(_: ArgumentParser) -> None:
    """Add no arguments."""


def run(_: Namespace) -> str:
    """Return the pipeline's state, read without DVC. Raise if the project pins another package version."""
    from posttrain.pipeline.lock.package_pin import check_installed
    from posttrain.pipeline.lock.status import status

    check_installed()
    return status()
