"""A run of `evaluate.ratings`: compare policies with each other on the prompts of their evaluations."""

from __future__ import annotations

from typing import Any

from posttrain.files import write_json
from posttrain.measure.record import note
from posttrain.pipeline.params.params_file import load
from posttrain.pipeline.runs.ratings import SLOT, RatingRun, figures, pairs_of, played
from posttrain.pipeline.runs.sampled_evaluation import load_policies
from posttrain.pipeline.tables.store import write_table
from posttrain.pipeline.workspace import metrics_path


def rate(run: str) -> dict[str, Any]:
    """Rate policies against each other. Write the matches and the ratings, and return the ratings."""
    where = f"evaluate.ratings.{run}"
    params = load(RatingRun, where)
    note(seed=params.seed)
    pairs = pairs_of(params, where, list(load_policies()))
    matches = played(params, where, pairs)
    ratings = figures(matches, params, where, pairs)
    file = metrics_path(f"ratings/{run}")
    write_table(matches.drop(SLOT), file.with_suffix(".parquet"), "matches")
    write_json(file, ratings)
    return ratings
