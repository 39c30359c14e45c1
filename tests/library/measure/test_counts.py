"""Counts of a stage, and seconds of its parts."""

from __future__ import annotations

import time

import pytest

from posttrain.measure.counts import COUNTS, count, counts, seconds_of


def test_seconds_of_a_block_add_up_also_if_it_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(COUNTS, "test_s", raising=False)
    with seconds_of("test_s"):
        time.sleep(0.02)
    first = COUNTS["test_s"]
    assert 0.02 <= first < 5
    with pytest.raises(KeyError), seconds_of("test_s"):
        raise KeyError
    assert COUNTS["test_s"] > first


def test_counts_are_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(COUNTS, "test_n", raising=False)
    count({"test_n": 0.12345678})
    assert counts()["test_n"] == 0.123457
    monkeypatch.delitem(COUNTS, "test_n")
