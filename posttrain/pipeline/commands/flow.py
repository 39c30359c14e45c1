"""`posttrain flow`: run the stages of dvc.yaml as Prefect tasks."""

from __future__ import annotations

from argparse import Namespace
from typing import NoReturn

from posttrain.pipeline.by_name import flow, run_flow

FLOW = flow("pipeline")
EXAMPLE, add_arguments = FLOW.EXAMPLE, FLOW.add_arguments
JSON = None


def run(arguments: Namespace) -> NoReturn:
    """Run the flow and exit with its code."""
    run_flow(FLOW, arguments)
