"""Ratings of policies against each other, as written by the stage `evaluate_ratings`."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from posttrain.measure.text_table import text_table
from posttrain.pipeline.params.stage_table import Settings, group_of
from posttrain.pipeline.report.policies import check_recorded, output_digests, read_json
from posttrain.pipeline.workspace import metrics_path


def read_ratings(settings: Settings, left_out: Container[str]) -> dict[str, dict[str, Any]]:
    """Return name -> contents of metrics/ratings/NAME.json, for ratings that have run. `left_out`: ratings/NAME."""
    names = [name for name in group_of(settings, "evaluate.ratings") if f"ratings/{name}" not in left_out]
    files = {name: metrics_path(f"ratings/{name}") for name in names}
    digests = output_digests() if files else {}
    for file in files.values():
        check_recorded(file, digests)
    return {name: read_json(file) for name, file in files.items() if file.is_file()}


def rating_lines(name: str, found: Mapping[str, Any]) -> list[str]:
    """Return the ratings as lines of text."""
    rows = [["policy", "rating [95 % interval]", "rank"]]
    for row in found["policies"]:
        interval = f"{row['rating']:+.0f} [{row['rating_low']:+.0f}, {row['rating_high']:+.0f}]"
        rank = f"{row['rank_low']}" + (f" to {row['rank_high']}" if row["rank_high"] > row["rank_low"] else "")
        rows.append([row["policy"], interval, rank])
    return [f"ratings {name}, by {found['decided_by']}", *text_table(rows, left=(0, 1, 2))]
