"""Words that may follow a value without changing it: a reason, a new sentence, or words of the prompt."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from typing import Final

from posttrain.answers.nodes import word_set
from posttrain.answers.units import singular, table

MOST_WORDS: Final = 3
"""Maximum number of words of the prompt that may follow a value."""
NUMBERS: Final = word_set(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen "
    "eighteen nineteen twenty thirty forty fifty sixty seventy eighty ninety"
)
ARITHMETIC: Final = word_set(
    "plus minus times over halves halved doubled tripled quadrupled squared cubed divided multiplied raised negated "
    "reversed inverted increased reduced decreased percent modulo mod factorial thousand million billion dozen hundred"
)
OPERATIONS: Final = ARITHMETIC | word_set(
    "after before next previous half double twice triple quarter third power powers root negative inverse "
    "reciprocal rounded less more fewer short dozens added subtracted opposite sum difference product quotient "
    "ratio between to up down almost nearly about roughly approximately around least most under above below "
    "beyond within except excluding including without first second or not no and but if unless maybe perhaps "
    "possibly either neither nor so"
)
"""Words that may change the value before them, besides numbers."""
FILLERS: Final = word_set(
    "a an the of in on at for is are was were be total altogether overall all left remaining remain "
    "has have had gets got "
    "only that there this these it exactly respectively needed required here now"
)
"""Words that change no value."""
_ENDS = re.compile(r"[\s.!$)。」*_\"'\]]*\Z")
REASON = re.compile(r"\s*[,;:]?\s*[(—–-]?\s*(?:because|since|as|which (?:is|are|was|equals|means|makes)|so that)\b")
_SENTENCE = re.compile(
    r"[\s$*_)]*(?:[.!?;。，]|,\s(?:so|and so|where|with|for|because|since|as|which|that is|i\.e\.)\b)\s*[^\W\d]"
)
_COMPARED = re.compile(
    r"\A(?:young|old|tall|short|long|heav|light|cheap|fast|slow|bigg|small|larg|great|high|low|earl|lat)i?er\Z"
)
_OTHER_VALUE = re.compile(r"\s*[,(]?\s*(?:and\s)?(?:not|rather than|instead of)\s[-$\d\\]")
_CLAUSE = re.compile(r"\s*(?:[,:]\s|[—–-]\s)\s*(?!and\b)[^\W\d]")
_ASIDE = re.compile(r"\s*\([^()\d]*[^\W\d]{3}[^()\d]*\)")
_WORDS = re.compile(r"[^\W\d_]+")


def may_follow(rest: str, question: str | None) -> bool:
    """True if the text after a value does not change the value.

    `question`: the prompt, whose words may follow; None: all words but operations may.
    """
    if any(pattern.match(rest) for pattern in (_ENDS, REASON, _SENTENCE, _OTHER_VALUE)):
        return True
    if (
        (aside := _ASIDE.match(rest))
        and OPERATIONS.isdisjoint(_WORDS.findall(aside[0].lower()))
        and "base" not in aside[0]
    ):
        return may_follow(rest[aside.end() :], question)
    words = [word.lower() for word in _WORDS.findall(rest)]
    if not words or re.search(r"[\d\\=+*/^<>]", rest) or not OPERATIONS.isdisjoint(words):
        return False
    if any(map(_COMPARED.match, words)):
        return False
    if not NUMBERS.isdisjoint(words):
        return False
    if _CLAUSE.match(rest) or question is None:
        return True
    return bool(re.match(r"[\s$]", rest)) and are_known(words, question, MOST_WORDS)


def are_known(words: Collection[str], question: str, most: int) -> bool:
    """True if the words do not change a value: fillers, units, and a limited number of words from the prompt."""
    if not OPERATIONS.isdisjoint(words) or not NUMBERS.isdisjoint(words) or any(map(_COMPARED.match, words)):
        return False
    asked = {_stem(word) for word in _WORDS.findall(question.lower())}
    unknown = [word for word in words if word not in FILLERS and word not in table()]
    return len(unknown) <= most and all(_stem(word) in asked for word in unknown)


def changes_value(rest: str) -> bool:
    """True if the first word after a box is arithmetic: doubled, minus one."""
    word = re.match(r"[\s$*_)\]]{0,6}([^\W\d_]{2,})", rest)
    return word is not None and word[1].lower() in ARITHMETIC


def _stem(word: str) -> str:
    """A word without accents and the ending of its plural."""
    word = "".join(letter for letter in unicodedata.normalize("NFKD", word) if not unicodedata.combining(letter))
    return singular(word) if word.endswith("s") else word
