"""The table of results that a flow run shows in Prefect."""

from __future__ import annotations

from flows.artifacts import safe_rows


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
