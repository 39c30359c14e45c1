"""Split text into words, in languages with and without spaces."""

from __future__ import annotations

from typing import Final

import regex

UNSPACED: Final = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}]\p{M}*"
"""A letter of a script without spaces between words. Each counts as a word."""
_EMOJI: Final = r"\p{Extended_Pictographic}[\p{M}\u200d\ufe0f]*"
_WORD: Final = rf"{UNSPACED}|{_EMOJI}|(?:(?!{UNSPACED})[\p{{L}}\p{{M}}\p{{N}}])+(?:['’]\p{{L}}+)*"
"""A letter of such a script, an emoji, or letters and digits; `_` does not join words."""
_WORDS: Final = regex.compile(_WORD)
_PIECES: Final = regex.compile(rf"{_WORD}|\S")


def words(text: str) -> list[str]:
    """Return the words and numbers of a text, without punctuation."""
    parts: list[str] = _WORDS.findall(text)
    return parts


def pieces(text: str) -> list[str]:
    """Return the words, numbers and other signs of a text in lower case."""
    parts: list[str] = _PIECES.findall(text.casefold())
    return parts
