"""Verdicts are found again by what was asked."""

from __future__ import annotations

from pathlib import Path

from posttrain.rewards.judge.verdict_cache import VerdictCache
from posttrain.rewards.usage import Usage


def test_verdicts_and_what_they_took(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    assert cache.read({"q": 1}) is None and cache.usage({"q": 1}) == Usage()
    cache.write({"q": 1}, [0.5], Usage(requests=1, tokens_in=7))
    cache.write({"q": 2}, [0.25, 1.0], Usage())
    again = VerdictCache(tmp_path)
    assert again.read({"q": 1}) == (0.5,) and again.read({"q": 1}, 2) is None
    assert again.read({"q": 2}, 2) == (0.25, 1.0)
    assert again.usage({"q": 1}) == Usage(requests=1, tokens_in=7)


def test_the_weights_of_the_last_time_count_where_nobody_answers(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    assert cache.weights({"url": "u"}, None) == ""
    assert cache.weights({"url": "u"}, "abc") == "abc"
    assert cache.weights({"url": "u"}, None) == "abc" and cache.weights({"url": "u"}, "") == ""


def test_a_file_that_cannot_be_read_counts_as_missing(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.write({"q": 1}, [0.5], Usage())
    for file in tmp_path.rglob("*.json"):
        file.write_text("{")
    assert cache.read({"q": 1}) is None
