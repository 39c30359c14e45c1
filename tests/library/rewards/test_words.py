"""Text as words and signs, in languages with and without spaces."""

from __future__ import annotations

from posttrain.rewards.words import pieces, words


def test_words() -> None:
    assert words("It's 12 apples, 两个!") == ["It's", "12", "apples", "两", "个"]


def test_pieces() -> None:
    assert pieces("It's OK, no?") == ["it's", "ok", ",", "no", "?"]
