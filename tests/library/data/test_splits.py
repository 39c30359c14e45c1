"""Which split a row belongs to."""

from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl
import pytest

from posttrain.data.columns import content_ids
from posttrain.data.splits import check_enough_prompts, split_names, split_of, splits_by_hash, training_prompts
from posttrain.errors import DataError


def share(problem: str) -> float:
    return int(hashlib.sha256(problem.encode()).hexdigest()[:16], 16) / 2**64


def test_split_of_a_problem() -> None:
    for problem in map(str, range(50)):
        u = share(problem)
        wanted = "test" if u < 0.2 else "heldout" if u < 0.5 else "train"
        assert split_of(problem, heldout_share=0.3, test_share=0.2) == wanted


def test_split_names() -> None:
    assert split_names({}, ["train", "Validation", "extra", "test"]) == {
        "train": "train", "Validation": "heldout", "test": "test",
    }  # fmt: skip
    assert split_names({"train": "extra"}, ["train", "extra"]) == {"extra": "train"}


def test_training_prompts() -> None:
    frame = pl.DataFrame({"split": ["train", "test"], "id": ["a", "b"]})
    assert training_prompts(frame, Path("t"))["id"].to_list() == ["a"]
    with pytest.raises(DataError, match="it has no training prompts, only test"):
        training_prompts(frame.tail(1), Path("t"))


def test_an_evaluation_needs_two_prompts() -> None:
    check_enough_prompts(2, "test", Path("t"))
    with pytest.raises(DataError, match="the split 'test' has 1 prompt, and"):
        check_enough_prompts(1, "test", Path("t"))
    with pytest.raises(DataError, match="the split 'test' has 1 prompt, and"):
        check_enough_prompts(1, "test", Path("t"), of=1)
    with pytest.raises(DataError, match="the rewards can judge 0 of 40 prompts of the split 'test', and"):
        check_enough_prompts(0, "test", Path("t"), of=40)


def test_splits_by_hash() -> None:
    frame = pl.DataFrame({"problem": ["a", "b", "c"], "text": ["x", "y", "z"]})
    shares = {"heldout_share": 0.3, "test_share": 0.3}
    found = splits_by_hash(frame, "prompts", **shares)
    assert found.to_list() == [split_of(key, **shares) for key in "abc"] and found.name == "split"
    texts = splits_by_hash(frame, "corpus", **shares)
    assert texts.to_list() == [split_of(key, **shares) for key in content_ids(frame, ["text"])]
