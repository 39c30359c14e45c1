"""The letter that a completion chooses."""

from __future__ import annotations

import re

from posttrain.answers.extract import Form, after_mark, final_answer
from posttrain.answers.nodes import Unreadable

_FONT = re.compile(r"\\(?:text\w*|math\w+)\s?\{([^{}]{0,80})\}")
_OPEN, _CLOSE = r"(?:\\boxed\{|[\s*_$\"'`({\[]|\\\(){0,8}", r"(?![A-Za-z0-9'’^]|_(?!_))(?:[)}\]*$\"'`_]|\\\)){0,8}"
_AND = r"\s?[,;&]\s?|\s(?=\W*[A-Z]\W)|\s?[和与及、，]\s?|,?\s(?:and|und|et|y|e|и)\s"
_CHOSEN = re.compile(
    r"[\s*_$\"'`:]{0,8}(?:(?:options?|choices?|letters?|answers?)\b[\s*_:]{0,4})?"
    rf"(?P<letters>{_OPEN}[A-Za-z]{_CLOSE}(?:(?:{_AND}){_OPEN}[A-Z]{_CLOSE}){{0,12}}"
    r"|[({$]{0,2}[A-Z]{2,10}\b[)}$]{0,2})(?P<rest>.*)",
    re.DOTALL,
)
_MORE = re.compile(
    r"[\s,;/&*)$}\]]*(?:\b(?:or|and|and/or)\b\s*[($*]*[A-Z]\b|/\s*[A-Z]\b)|\s*\?|\W*(?:\bnot\b(?!\s*\W?[A-Z]\b)|\bor\b)"
)
_ENDS = re.compile(r"\s*(?:\Z|[.:,;)。，]|[-–—]\s|(?:because|since|as)\b)")


def chosen(text: str, choices: str, form: Form = "auto", *, truncated: bool = False, unmarked: bool = False) -> str:
    """Return the letter of the last marked answer, or its letters in order. Raise Unreadable if there is none."""

    def fits(answer: str) -> bool:
        return letters(answer, choices) is not None

    text = _FONT.sub(r"\1", text)
    return _of(final_answer(text, form, truncated=truncated, unmarked=unmarked, fits=fits), choices)


def chosen_after(text: str, mark: str, choices: str) -> str:
    """Return the letters after the last custom mark."""
    return _of(after_mark(text, mark, lambda answer: letters(answer, choices) is not None), choices)


def _of(answer: str, choices: str) -> str:
    found = letters(answer.upper() if len(answer.strip(" .")) == 1 else answer, choices)
    if found is None:
        raise Unreadable(f"it chooses none of {choices}, or one of several")
    return found


def letters(answer: str, choices: str) -> str | None:
    """Return the letters of a text that consists of letters, or of a letter with its meaning; None for another text."""
    found = _CHOSEN.match(answer.strip())
    if not found:
        return None
    given = re.findall(r"[A-Za-z]", found["letters"].replace("\\boxed", ""))
    given = [letter for letter in given if letter.isupper() or len(given) == 1]
    closed, rest = bool(re.search(r"[)}\]$*]\s*\Z", found["letters"])), found["rest"]
    if not given or len(set(given)) < len(given) or not all(letter.upper() in choices for letter in given):
        return None
    if _MORE.match(rest) or not (closed or _ENDS.match(rest)) or not (closed or given[0].isupper()):
        return None
    return "".join(sorted(letter.upper() for letter in given))
