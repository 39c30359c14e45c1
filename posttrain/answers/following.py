"""Which words may follow a value without changing it: a reason, a new sentence, or words of the prompt."""

from __future__ import annotations

import re
from typing import Final

from posttrain.answers.nodes import word_set
from posttrain.answers.units import singular, table

MOST_WORDS: Final = 3
"""The most words of the prompt that may follow a value."""
NUMBERS: Final = word_set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
ARITHMETIC: Final = word_set(
    "plus minus times over halves halved doubled tripled quadrupled squared cubed divided multiplied raised negated "
    "reversed inverted increased reduced decreased percent modulo mod factorial thousand million billion dozen hundred"
)
OPERATIONS: Final = ARITHMETIC | word_set(
    "half double twice triple quarter third power powers root negative inverse reciprocal rounded less more "
    "fewer short dozens added subtracted opposite sum difference product quotient ratio between to up down "
    "almost nearly about roughly approximately around least most under above below beyond within except "
    "excluding including without first second or not no and but if unless maybe perhaps possibly either "
    "neither nor so"
)
"""Words that may change the value before them, besides numbers."""
FILLERS: Final = word_set(
    "a an the of in on at per for is are was were be total altogether overall all left remaining remain each every "
    "only that there this these it exactly respectively needed required here now"
)
"""Words that change no value."""
_ENDS = re.compile(r"[\s.!$)。」*_\"'\]]*\Z")
REASON = re.compile(r"\s*[,;:]?\s*[(—–-]?\s*(?:because|since|as|which (?:is|are|was|equals|means|makes)|so that)\b")
_SENTENCE = re.compile(
    r"[\s$*_)]*(?:[.!?;。，]|,\s(?:so|and so|where|with|for|because|since|as|which|that is|i\.e\.)\b)\s*[^\W\d]"
)
_OTHER_VALUE = re.compile(r"\s*,\s*(?:and\s)?(?:not|rather than)\s[-$\d\\]")
_CLAUSE = re.compile(r"\s*(?:[,:]\s|[—–-]\s)\s*(?!and\b)[^\W\d]")
_BRACKETS = re.compile(r"\s*\([^()\d]*[^\W\d]{3}[^()\d]*\)[\s.!]*\Z")
_WORDS = re.compile(r"[^\W\d_]+")


def may_follow(rest: str, question: str | None) -> bool:
    """Whether a text after a value leaves the value as it is.

    `question`: the prompt, whose words may follow; None: all words but operations may.
    """
    if any(pattern.match(rest) for pattern in (_ENDS, REASON, _SENTENCE, _OTHER_VALUE)):
        return True
    words = [word.lower() for word in _WORDS.findall(rest)]
    if not words or re.search(r"[\d\\=+*/^<>]", rest) or not OPERATIONS.isdisjoint(words):
        return False
    if _BRACKETS.match(rest):
        return "base" not in words
    if not NUMBERS.isdisjoint(words):
        return False
    if _CLAUSE.match(rest) or question is None:
        return True
    asked = {_stem(word) for word in _WORDS.findall(question.lower())}
    unknown = [word for word in words if word not in FILLERS and word not in table()]
    return (
        bool(re.match(r"[\s$]", rest)) and len(unknown) <= MOST_WORDS and all(_stem(word) in asked for word in unknown)
    )


def changes_value(rest: str) -> bool:
    """Whether the first word after a box is arithmetic: doubled, minus one."""
    word = re.match(r"[\s$*_)\]]{0,6}([^\W\d_]{2,})", rest)
    return word is not None and word[1].lower() in ARITHMETIC


def _stem(word: str) -> str:
    """A word without the ending of its plural."""
    return singular(word) if word.endswith("s") else word
