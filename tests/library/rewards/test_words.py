"""Text as words and signs, in languages with and without spaces."""

from __future__ import annotations

from posttrain.rewards.words import pieces, words


def test_words() -> None:
    assert words("It's 12 apples, 两个!") == ["It's", "12", "apples", "两", "个"]
    assert len(words("_".join(["word"] * 5000))) == 5000 and len(words("🙂" * 5000)) == 5000
    assert words("👩\u200d🚀 ok") == ["👩\u200d", "🚀", "ok"] and words("...") == []


def test_pieces() -> None:
    assert pieces("It's OK, no?") == ["it's", "ok", ",", "no", "?"]
