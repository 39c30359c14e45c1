"""Regular expressions of users: matched, measured and refused."""

from __future__ import annotations

import pytest

from posttrain.rewards.patterns import (
    LONGEST,
    PatternOptions,
    has_pattern,
    matches,
    pattern_score,
    valid_pattern,
    written_out,
)
from posttrain.rollout import Score
from tests.library.models.tiny import rollout_of


def test_matches() -> None:
    assert matches("b+", "abba", "search") and not matches("b+", "abba", "full") and matches("b+", "bb", "full")


def test_pattern_score() -> None:
    assert pattern_score("b", "abc", "search") == Score(1.0) and pattern_score("b", "abc", "full") == Score(0.0)
    assert has_pattern.each is not None
    assert has_pattern.each(rollout_of("Step 1"), PatternOptions(pattern="(?i)step")) == Score(1.0)


def test_valid_pattern() -> None:
    assert valid_pattern("a{3}") == "a{3}"
    with pytest.raises(ValueError, match="is not a regular expression"):
        valid_pattern("(")
    with pytest.raises(ValueError, match="Write at most"):
        valid_pattern("a" * (LONGEST + 1))
    with pytest.raises(ValueError, match="takes gigabytes"):
        valid_pattern("(a{1000}){1000}")


@pytest.mark.parametrize(
    ("pattern", "size"), [("abc", 3), (r"\d[ab]+", 2), ("a{4}b", 5), ("(ab){3}", 6), ("((ab){3}c){2}", 14), ("a|b", 2)]
)
def test_written_out(pattern: str, size: int) -> None:
    assert written_out(pattern) == size
