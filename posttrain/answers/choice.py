"""The letter that a completion chooses."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache, partial

from posttrain.answers.extract import Form, after_mark, final_answer
from posttrain.answers.nodes import Unreadable

_FONT = re.compile(r"\\(?:text\w*|math\w+)\s?\{([^{}]{0,80})\}")
_OPEN, _CLOSE = r"(?:\\boxed\{|[\s*_$\"'`({\[]|\\\(){0,8}", r"(?![A-Za-z0-9'’^]|_(?!_))(?:[)}\]*$\"'`_]|\\\)){0,8}"
_AND = r"\s?[,;&]\s?|\s(?=\W*[A-Z]\W)|\s?[和与及、，]\s?|,?\s(?:and|und|et|y|e|и)\s"
_CHOSEN = re.compile(
    r"[\s*_$\"'`:]{0,8}(?:(?i:options?|choices?|letters?|answers?)\b[\s*_:]{0,4})?"
    rf"(?P<letters>{_OPEN}[A-Za-z]{_CLOSE}(?:(?:{_AND}){_OPEN}[A-Z]{_CLOSE}){{0,12}}"
    r"|[({$]{0,2}[A-Z]{2,10}\b[)}$]{0,2})(?P<rest>.*)",
    re.DOTALL,
)
_MORE = re.compile(
    r"[\s,;/&*)$}\]]*(?:\b(?:or|and|and/or)\b\s*[($*]*[A-Z]\b|/\s*[A-Z]\b)|\s*\?|\W*(?:\bnot\b(?!\s*\W?[A-Z]\b)|\bor\b)"
)
_DENIED = re.compile(
    r"[\s,)}*]*(?:is|was)?\s*(?:in|not\s)correct|[\s,)}*]*(?:is|was)\s(?:not|wrong|false)|\W*but\b.*\b[A-Z]\b",
    re.DOTALL,
)
_INLINE = re.compile(r"\((?P<letter>[A-Z])\)\s*(?P<text>[^\n]{1,300}?)(?=\s*[,;]?\s*\([A-Z]\)|\s*$)", re.MULTILINE)
_TEXT_FIRST = re.compile(r"(?P<text>.{1,300}?)\s*\((?P<letter>[A-Z])\)\W*\Z", re.DOTALL)
_LISTED = re.compile(r"^[\s*>-]{0,6}\(?(?P<letter>[A-Z])[).:]\**\s+(?P<text>[^\n]{1,300}?)\s*$", re.MULTILINE)
CONTRADICTS = "the letter of one choice and the text of another"
BEFORE_TEXT = 16
"""Maximum number of characters before the text of a choice that may hold its letter: option B)."""
_ENDS = re.compile(r"\s*(?:\Z|\([^()]{1,80}\)\s*\.?\Z|[.:,;)。，]|[-–—]\s|(?:because|since|as)\b)")


def chosen(
    text: str, choices: str, form: Form = "auto", *, truncated: bool = False, unmarked: bool = False, question: str = ""
) -> str:
    """Return the letter of the last marked answer, or its letters in order. Raise Unreadable if there is none."""
    read = partial(_read, choices=choices, listed=listed(question, choices))

    def fits(answer: str) -> bool:
        return read(answer) is not None

    text = _FONT.sub(r"\1", text)
    return _of(read, final_answer(text, form, truncated=truncated, unmarked=unmarked, fits=fits, question=""), choices)


def chosen_after(text: str, mark: str, choices: str, question: str = "") -> str:
    """Return the letters after the last custom mark."""
    read = partial(_read, choices=choices, listed=listed(question, choices))
    return _of(read, after_mark(text, mark, lambda answer: read(answer) is not None), choices)


@lru_cache(maxsize=512)
def listed(question: str, choices: str) -> dict[str, str]:
    """Text -> letter, for choices that a prompt lists on separate lines; without texts that occur twice."""
    lines = [*_LISTED.finditer(question), *_INLINE.finditer(question)]
    pairs = {(_same(line["text"]), line["letter"]) for line in lines if line["letter"] in choices}
    sorted_pairs = sorted(pair for pair in pairs if not re.search(r"\([a-z]\)", pair[0]))
    texts = [text for text, _ in sorted_pairs]
    return {text: letter for text, letter in sorted_pairs if text and texts.count(text) == 1}


def _same(text: str) -> str:
    """A text of a choice in one spelling."""
    return " ".join(re.sub(r"[$*_`\"'{}]|\\(?:text|mathrm)", "", text).lower().strip(" .,;").split())


def _read(answer: str, *, choices: str, listed: dict[str, str]) -> str | None:
    """The letters of an answer, or the letter of the choice whose text it is."""
    one = answer.upper() if len(answer.strip(" .")) == 1 else answer
    letter, text = letters(one, choices), _same(answer)
    if (last := _TEXT_FIRST.fullmatch(answer)) and _same(last["text"]) in listed:
        if listed[_same(last["text"])] != last["letter"]:
            raise Unreadable(CONTRADICTS)
        return last["letter"]
    if letter is None:
        return listed.get(text)
    beside = next((other for other in (text[place:] for place in range(len(text))) if other in listed), "")
    contradicts = len(letter) == 1 and beside and text.endswith(beside) and listed[beside] != letter
    if contradicts and len(text) - len(beside) < BEFORE_TEXT:
        raise Unreadable(CONTRADICTS)
    return letter


def _of(read: Callable[[str], str | None], answer: str, choices: str) -> str:
    chosen = read(answer)
    if chosen is None:
        raise Unreadable(f"it chooses none of {choices}, or one of several")
    return chosen


def letters(answer: str, choices: str) -> str | None:
    """Return the letters of a text that is only letters, or a letter with its meaning; None for any other text."""
    match = _CHOSEN.match(answer.strip())
    if not match:
        return None
    given = re.findall(r"[A-Za-z]", match["letters"].replace("\\boxed", ""))
    given = [letter for letter in given if letter.isupper() or len(given) == 1]
    closed, rest = bool(re.search(r"[)}\]$*]\s*\Z", match["letters"])), match["rest"]
    if not given or len(set(given)) < len(given) or not all(letter.upper() in choices for letter in given):
        return None
    if (
        _DENIED.match(rest)
        or _MORE.match(rest)
        or not (closed or _ENDS.match(rest))
        or not (closed or given[0].isupper())
    ):
        return None
    return "".join(sorted(letter.upper() for letter in given))
