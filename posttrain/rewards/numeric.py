"""The final number of a completion, and the reward `format` (docs/rewards.md)."""

from __future__ import annotations

import re
from collections import deque
from decimal import Decimal
from functools import lru_cache
from typing import Literal

from pydantic import Field

from posttrain.rollout import Score
from posttrain.settings.params import Params

_DIGITS = r"([-\u2212]?)\$?((?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
_NUMBER = rf"{_DIGITS}\.?\s*\Z"
"""A number at the end of a text. A dollar sign, commas between thousands and a final full stop are allowed."""
_ANY = re.compile(rf"(?<![\w./])(?<![0-9],){_DIGITS}(?!\w|[,./][0-9])")
"""A number anywhere in a text, as a separate word."""
_LAST = re.compile(rf"(?:\A|(?<=[\s=:])){_NUMBER}")
_WHOLE = re.compile(rf"\s*{_NUMBER}")
_PART = re.compile(
    r"(?:[\d)}%]\s*[-+*/\u00d7\u00f7\u00b7^\u2013\u2212]|[\w)}][-\u2013\u2212/]|[\\^_]\w{0,10}\s*\{|\}\s*\{|\u221a"
    r"|\b(?:between|from)\s\S{1,20}\s(?:and|to)|\d[.,]?\s(?:or|to)|\b(?:not|never|than|n't)(?:\s(?!but\b)\w{1,12}){0,2}|n't"
    r"|\b(?:jan|feb|mar|apr|may|jun|jul|aug|sept?|oct|nov|dec)[a-z]{0,6}\.?\s\d{1,2},?)\s*-?\$?\Z",
    re.IGNORECASE,
)
"""Text before a number that is only a part (of a range, fraction, sum or date) or is negated."""
_BOX = re.compile(r"\\(?:boxed|fbox|text\w*|math\w+)\s*\{\s*-?\$?\Z")
_MORE = re.compile(
    r"\s*(?:[*+/^\u00d7\u00f7\u221a](?!\*)|\?|-\s?[\da-z(\\]\b|\\(?:times|cdot|div|frac|pi|sqrt)|(?:hundred|thousand|[mb]illion|"
    r"trillion|dozen|or|to)\b)",
    re.IGNORECASE,
)
"""Text after a number that is only a part."""
_REASONS = {
    r"[0-9]\s*/\s*-?[0-9]": "a fraction",
    r"\\boxed": "a \\boxed{} answer",
    r"\A\(?[A-Za-z]\)?\Z": "a choice letter",
    r"\A\Z": "empty",
}


class NumericOptions(Params):
    """How a final number is found."""

    after: str | None = Field(
        None, min_length=1, description="mark before the final answer, e.g. '####'; null: the number ends the text"
    )
    find: Literal["end", "last"] = Field(
        "end",
        description="end: the number ends the completion; last: the last number in it, whatever follows",
    )


def final_number(text: str, options: NumericOptions) -> Decimal | None:
    """Return the final number of a completion, after the options' mark if there is one; None if it has none."""
    if options.find == "end":
        match = (_LAST if options.after is None else _marked(options.after)).search(text)
        return _decimal(match) if match and (options.after is not None or _stands_alone(text, match)) else None
    _, mark, rest = (text, "", text) if options.after is None else text.rpartition(options.after)
    last = deque(_ANY.finditer(rest), maxlen=1)
    if not last or (options.after is not None and not mark) or re.search(r"\d", rest[last[0].end() :]):
        return None
    return _decimal(last[0]) if _stands_alone(rest, last[0]) else None


def _stands_alone(text: str, match: re.Match[str]) -> bool:
    """Tell whether a number is not part of a range, fraction, sum or date, and not negated."""
    before = text[max(0, match.start(2) - 60) : match.start(2)]
    part = _PART.search(before) and not _BOX.search(before)
    return not part and not _MORE.match(text, match.end())


def expected_number(answer: str, after: str | None) -> Decimal | None:
    """Return the number in a prompt's answer, or after the answer's last mark; None if it is not a plain number."""
    return _decimal(_WHOLE.match(answer if after is None else answer.rpartition(after)[2]))


def why_no_number(answer: str, after: str | None) -> str:
    """Return the reason why `expected_number` cannot read an answer."""
    written = (answer if after is None else answer.rpartition(after)[2]).strip()
    if after is None and (mark := re.search(r"(#{2,}|[Aa]nswer( is)?:?)\s*\S{1,20}\Z", written)):
        return f"text; set after: '{mark[1]}' if the number follows it"
    return next((reason for pattern, reason in _REASONS.items() if re.search(pattern, written)), "not a number")


def missing_number(options: NumericOptions) -> Score:
    """Return the score of a completion without a final number."""
    wanted = "a number" if options.after is None else f"`{options.after} N`"
    verb = "end with" if options.find == "end" else "have"
    return Score(0.0, "unparseable", f"it does not {verb} {wanted}")


@lru_cache
def _marked(after: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(after)}\s*{_NUMBER}")


def _decimal(match: re.Match[str] | None) -> Decimal | None:
    """Return the matched number exactly. As floats, different large numbers can be equal."""
    return Decimal(("-" if match[1] else "") + match[2].replace(",", "")) if match else None
