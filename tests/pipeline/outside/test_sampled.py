"""A rollout of another library's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.errors import DataError
from posttrain.pipeline.outside.rollouts.sampled import text_of, turns_of, unreadable


def test_turns_and_text() -> None:
    assert turns_of("a", "prompt", Path("f"), 1) == [("user", "a")]
    talk = turns_of([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "prompt", Path("f"), 1)
    assert talk == [("user", "a"), ("assistant", "b")]
    assert text_of([("assistant", "b")]) == "b" and text_of(talk) == "user: a\n\nassistant: b"
    with pytest.raises(DataError, match="f, row 3"):
        turns_of(3, "prompt", Path("f"), 3)


def test_unreadable() -> None:
    found = unreadable(Path("f"), 2, "bad\x1b", "Fix it")
    assert (found.what, found.where, found.fix) == (r"bad\x1b", "f, row 2", "Fix it")
