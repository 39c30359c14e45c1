"""`posttrain server`: run Prefect's server and UI."""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from posttrain.pipeline.by_name import flow, run_flow

FLOW = flow("server")
EXAMPLE, add_arguments = FLOW.EXAMPLE, FLOW.add_arguments
JSON = None


def run(arguments: Namespace) -> NoReturn:
    """Run the server and exit with its code."""
    run_flow(FLOW, arguments)
