"""`posttrain deploy`: run the flow on a schedule, on new data or on a work pool."""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from posttrain.pipeline.by_name import flow, run_flow

FLOW = flow("deploy")
EXAMPLE, add_arguments = FLOW.EXAMPLE, FLOW.add_arguments
JSON = None


def run(arguments: Namespace) -> NoReturn:
    """Deploy and exit with the exit code."""
    run_flow(FLOW, arguments)
