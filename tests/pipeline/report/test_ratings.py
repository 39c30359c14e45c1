"""Ratings as they are read and printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.report.ratings import rating_lines, read_ratings

FOUND = {
    "decided_by": "the score",
    "policies": [
        {"policy": "a", "rating": 12.4, "rating_low": -1.0, "rating_high": 30.0, "rank_low": 1, "rank_high": 2},
        {"policy": "b", "rating": -12.4, "rating_low": -30.0, "rating_high": -20.0, "rank_low": 2, "rank_high": 2},
    ],
}


def test_ratings_that_have_run_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = {"evaluate": {"ratings": {"main": {}, "late": {}, "old": {}}}}
    Path("metrics/ratings").mkdir(parents=True)
    for name in ("main", "old"):
        Path(f"metrics/ratings/{name}.json").write_text(json.dumps(FOUND))
    assert read_ratings(settings, {"ratings/old"}) == {"main": FOUND}
    assert read_ratings({}, ()) == {}


def test_ratings_as_lines() -> None:
    lines = [line.split() for line in rating_lines("main", FOUND)]
    assert lines[0] == ["ratings", "main,", "by", "the", "score"]
    assert lines[2] == ["a", "+12", "[-1,", "+30]", "1", "to", "2"] and lines[3] == ["b", "-12", "[-30,", "-20]", "2"]
