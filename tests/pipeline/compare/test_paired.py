"""The paired test of policies on the same prompts."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from posttrain.errors import DataError
from posttrain.pipeline.compare import paired
from posttrain.pipeline.compare.paired import (
    against,
    are_shares,
    is_readable,
    prompt_parts,
    prompt_scores,
    with_scores,
)


def rollouts(*rewards: float | None, status: str = "ok") -> pl.DataFrame:
    """Two samples and a greedy completion of each prompt, which is all wrong."""
    rows = [
        {"prompt_id": f"p{nth}", "greedy": greedy, "reward": 0.0 if greedy else reward, "status": status,
         "scores": [{"name": "length", "value": 2.0 * nth, "status": "error" if greedy else "ok"}]}
        for nth, reward in enumerate(rewards) for greedy in (False, False, True)
    ]  # fmt: skip
    return pl.DataFrame(rows, schema_overrides={"reward": pl.Float64})


def test_scores_of_prompts() -> None:
    frame = rollouts(1.0, None, 0.5)
    assert prompt_scores(frame, "sampled").rows() == [("p0", 1.0), ("p1", None), ("p2", 0.5)]
    assert prompt_scores(frame, "greedy")["reward"].to_list() == [0.0, 0.0, 0.0]


def test_parts_of_the_reward() -> None:
    parts, lost = prompt_parts(rollouts(1.0, None, 0.5), "sampled")
    assert parts["length"].tolist() == pytest.approx([0.0, float("nan"), 4.0], nan_ok=True) and lost == {"length": 0}
    assert prompt_parts(rollouts(1.0), "greedy")[1] == {"length": 1}
    assert prompt_parts(rollouts(1.0).drop("scores"), "sampled") == ({}, {})


def test_is_readable() -> None:
    assert is_readable(rollouts(1.0), "sampled") and not is_readable(rollouts(1.0, status="unparseable"), "greedy")


def test_shares_and_known_prompts() -> None:
    assert are_shares([np.array([[0.0, 1.0]])]) and not are_shares([np.array([[0.0, 1.5]])])
    left, right = with_scores(np.array([[1.0, np.nan, 3.0]]), np.array([[4.0, 5.0, 6.0]]))
    assert left.tolist() == [[1.0, 3.0]] and right.tolist() == [[4.0, 6.0]]
    with pytest.raises(DataError, match="no prompt has a score"):
        with_scores(np.array([[np.nan]]))


def test_differences() -> None:
    (found,) = paired.tested([np.ones((1, 8)), np.tile([0.5, 1.0], 4)[None]], [(0, 1)])
    assert (found.mean, found.low, found.high) == (0.25, 0.0, 0.5)
    named = against(rollouts(0.0, 0.0, 1.0, 0.0), {"a": rollouts(1.0, 0.0, 1.0, 1.0), "other": rollouts(1.0)})
    assert list(named) == ["a"] and named["a"].mean == 0.5
    assert against(rollouts(1.0, status="error"), {"a": rollouts(1.0)}) == {}
