"""Filters that score the rows of a table."""

from __future__ import annotations

from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.pipeline.runs.scored_filter import EXAMPLE, ScoredFilterRun, answered
from posttrain.settings.params import check


def run(**given: Any) -> ScoredFilterRun:
    return check(
        ScoredFilterRun,
        {"data": "mine/chat", "against": "none", "reward_model": "none", **given},
        where="data.filters.a",
    )


def test_rows_as_rewards_take_them() -> None:
    found = answered(EXAMPLE, "messages")
    assert (found.text, found.prompt.id, list(found.prompt.messages)) == ("One and two.", "example", [])
    row = {"id": "a", "problem": "p", "prompt": [{"role": "user", "content": "q"}],
           "chosen": [{"role": "assistant", "content": "c"}]}  # fmt: skip
    pair = answered(row, "chosen")
    assert pair.text == "c" and [turn["content"] for turn in pair.prompt.messages] == ["q"]


def test_settings() -> None:
    assert run(reward={"length": {"limit": 9, "unit": "words"}}, min_score=0.5).min_score == 0.5
    assert run(near_duplicates=0.8).reward == {}
    for wrong, message in [
        ({"reward": {"format": 1.0}}, "Set both, or neither"),
        ({"reward": {"format": 1.0}, "min_score": 0.5, "data": "mine/corpus"}, "its rows have no answers to score"),
        ({}, "no filter is set"),
        ({"reward": {"correct": 1.0}, "min_score": 0.5}, "rows have no `answer`"),
    ]:
        with pytest.raises(ParamsError, match=message):
            run(**wrong)
