"""Reads data sets and models from the Hub that HF_ENDPOINT names, and prints what came of each as JSON.

python -m tests.pipeline.tables.hub_tried '[{"repo": "dataset", "name": "org/name", "limit": 3}, ...]'
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import resource
import sys
from pathlib import Path
from typing import Any

from posttrain.errors import PosttrainError
from posttrain.measure.record import LICENCE, noted
from posttrain.models.files.import_model import fetch_model
from posttrain.pipeline.tables.options import HubTable
from tests.pipeline.tables.hub_server import COMMIT
from tests.pipeline.tables.loading import load_table


def tried(case: dict[str, Any]) -> dict[str, Any]:
    """The rows, or the error, and the lines that were printed."""
    os.environ["HF_TOKEN"] = case.get("token", "")
    name, revision, printed = case["name"], case.get("revision", COMMIT), io.StringIO()
    source = {"name": name, "revision": revision, "limit": case.get("limit"), "heldout_share": 0.0, "test_share": 0.0}
    source |= {"where": case.get("where", {})}
    try:
        with contextlib.redirect_stderr(printed):
            if case["repo"] == "model":
                fetch_model(name, revision, Path("model"))
                return {}
            table = load_table(HubTable(**source), "chat", "here")
    except PosttrainError as error:
        return {"error": str(error)}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "ids": table["id"].to_list(),
        "printed": printed.getvalue(),
        "peak": peak,
        "licence": noted(f"{LICENCE}{name}"),
    }


if __name__ == "__main__":
    json.dump([tried(case) for case in json.loads(sys.argv[1])], sys.stdout)
