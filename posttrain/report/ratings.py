"""The ratings of policies against each other, as the stage `evaluate_ratings` wrote them."""

from __future__ import annotations

from typing import Any

from posttrain.params.stage_table import Settings, group_of
from posttrain.report.policies import check_recorded, output_digests, read_json
from posttrain.workspace import metrics_path


def read_ratings(settings: Settings) -> dict[str, dict[str, Any]]:
    """Return name -> what metrics/ratings/NAME.json holds, of those that have run."""
    files = {name: metrics_path(f"ratings/{name}") for name in group_of(settings, "evaluate.ratings")}
    digests = output_digests() if files else {}
    for file in files.values():
        check_recorded(file, digests)
    return {name: read_json(file) for name, file in files.items() if file.is_file()}
