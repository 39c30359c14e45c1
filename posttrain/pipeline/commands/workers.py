"""`posttrain workers`: let this host run stages for a flow."""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from posttrain.pipeline.by_name import flow, run_flow

FLOW = flow("workers")
EXAMPLE, add_arguments = FLOW.EXAMPLE, FLOW.add_arguments
JSON = None


def run(arguments: Namespace) -> NoReturn:
    """Run stages until interrupted."""
    run_flow(FLOW, arguments)
