"""The sheet of texts is the same for the same seed, and its controls are unmarked."""

from __future__ import annotations

import pytest

from benchmarks.english import DRAWN, score, sheet


def test_a_sheet_is_decided_by_its_seed() -> None:
    rows = sheet(1)
    assert rows == sheet(1) != sheet(2) and len(rows) == sum(DRAWN.values()) + 20
    assert {text for kind, text in rows if kind.startswith("control")} == {
        text for kind, text in sheet(2) if kind.startswith("control")
    }


def test_the_score() -> None:
    rows = sheet(1)
    bad = {number for number, (kind, _) in enumerate(rows, 1) if kind == "control twice"}
    pages = [number for number, (kind, _) in enumerate(rows, 1) if kind == "page"][:4]
    said = score(1, {*bad, *pages})
    assert "page: 4 of 80" in said and "all: 4 of 200, 2.0%" in said and "10 of 10 bad ones" in said
    assert "take another one" not in said and "take another one" in score(1, set(pages))
    with pytest.raises(SystemExit, match="no number 221"):
        score(1, {221})
