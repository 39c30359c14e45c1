"""The table of results that a flow run shows in Prefect."""

from __future__ import annotations

from flows.artifacts import in_columns, safe_rows


def test_every_row_says_what_it_is_of() -> None:
    setting = {"policy": "sft", "seeds": 1, "score": 0.5, "low": 0.4, "high": 0.6}
    run = {"table": "facts/prompts", "run": "shots", "policy": "sft", "score": 0.7}
    rated = {"policy": "dpo", "rating": 35.0, "rating_low": 10.0, "rating_high": 60.0, "rank_low": 1, "rank_high": 2}
    first, second, third = in_columns([setting, run, {"ratings": "judged", "decided_by": "score", "policies": [rated]}])
    assert (first["table"], first["policy"], first["score"]) == ("", "sft", 0.5)
    assert (second["table"], second["run"], second["score"]) == ("facts/prompts", "shots", 0.7)
    shown = [third[key] for key in ("table", "policy", "score", "low", "high")]
    assert shown == ["ratings judged", "dpo", 35.0, 10.0, 60.0]
    assert first.keys() == second.keys() == third.keys() and "table" not in in_columns([setting])[0]


def test_marks_of_direction_and_codes_are_escaped_in_every_text() -> None:
    rows = [
        {"stage": "sft@main", "stale because": "params note a\u202eb -> \x1b[31mc", "seconds": 1.5, "why\u2066": None}
    ]
    assert safe_rows(rows) == [
        {
            "stage": "sft@main",
            "stale because": "params note a\\u202eb -> \\x1b[31mc",
            "seconds": 1.5,
            "why\\u2066": None,
        }
    ]
