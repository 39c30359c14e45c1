"""Ratings as they are read and printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.pipeline.report.ratings import rating_lines, read_ratings, warnings_of

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


def test_ties_circles_and_a_judge_that_favours_a_slot_are_said() -> None:
    pairs = [
        {"first": "a", "second": "b", "ties": 0.1},
        {"first": "b", "second": "c", "ties": 0.3},
    ]
    circle = {"policies": ["a", "b", "c"], "clear": False}
    slot = {"first_slot": 0.7, "first_slot_low": 0.6, "first_slot_high": 0.8, "order_decided": 0.25}
    ties, chain, judge = warnings_of({"pairs": pairs, "circles": [circle], **slot})
    assert ties == "ties: 20.0% of the matches, most between b and c (30.0%)"
    assert chain.startswith("circle: a beats b, b beats c, c beats a, so") and chain.endswith(
        "not all of these wins are clear"
    )
    assert judge.startswith(
        "the judge took the reply it saw first in 0.700 [0.600, 0.800]: it favours the first; the order"
    )
    assert "decided 25.0% of the matches, which are ties" in judge
    fair = warnings_of(
        {"pairs": pairs, "circles": [], **slot, "first_slot": 0.45, "first_slot_low": 0.4, "first_slot_high": 0.5}
    )
    assert len(fair) == 2 and "no clear bias" in fair[1]
    assert warnings_of({"pairs": pairs}) == [], "an older version wrote it"
    assert warnings_of({"pairs": pairs, "circles": [{**circle, "clear": True}]})[1].endswith("says little")
