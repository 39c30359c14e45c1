"""`posttrain sweep`: run settings times seeds as DVC experiments."""

from __future__ import annotations

from argparse import Namespace

from posttrain.pipeline.by_name import flow, run_flow
from posttrain.pipeline.commands.line import Document, as_json

FLOW = flow("sweep")
EXAMPLE, add_arguments = FLOW.EXAMPLE, FLOW.add_arguments
JSON = "with --plan: print the plan as JSON"


def run(arguments: Namespace) -> str:
    """Run the sweep and exit with its code. With `--plan --json`, return its plan instead."""
    if arguments.plan and arguments.json:
        return Document(as_json(FLOW.plan_data(arguments)))
    return run_flow(FLOW, arguments)
