"""Instructions that a program can verify, similar to IFEval (Zhou et al. 2023). The texts and the code are posttrain's.

An instruction is a mapping with its `kind` and its options: `{"kind": "words", "at_most": 20}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Instruction = Mapping[str, Any]


@dataclass(frozen=True)
class Check:
    """One kind of instruction."""

    says: str
    """The instruction as text, with its options in braces."""
    followed: Callable[..., bool]
    """(text, **options) -> whether the text follows the instruction."""


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+(?:['’][^\W_]+)*", text.casefold())


def _is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


CHECKS: Final[Mapping[str, Check]] = {
    "at_least": Check("Use at least {count} words.", lambda text, count: len(_words(text)) >= count),
    "at_most": Check("Use at most {count} words.", lambda text, count: len(_words(text)) <= count),
    "include": Check('Use the word "{word}".', lambda text, word: word.casefold() in _words(text)),
    "avoid": Check('Do not use the word "{word}".', lambda text, word: word.casefold() not in _words(text)),
    "repeat": Check(
        'Use the word "{word}" at least {count} times.',
        lambda text, word, count: _words(text).count(word.casefold()) >= count,
    ),
    "lowercase": Check("Write in lowercase letters only.", lambda text: text == text.lower()),
    "uppercase": Check("Write in capital letters only.", lambda text: text == text.upper()),
    "no_commas": Check("Do not use any commas.", lambda text: "," not in text),
    "bullets": Check(
        'Write exactly {count} bullet points, each on a line that begins with "- ".',
        lambda text, count: len(re.findall(r"^\s*[-*] ", text, re.MULTILINE)) == count,
    ),
    "ends": Check('End with the words "{phrase}".', lambda text, phrase: text.casefold().endswith(phrase.casefold())),
    "begins": Check(
        'Begin with the words "{phrase}".', lambda text, phrase: text.casefold().startswith(phrase.casefold())
    ),
    "quotes": Check(
        "Put the whole answer in double quotation marks.",
        lambda text: len(text) > 1 and text[0] == text[-1] == '"' and text.count('"') == 2,
    ),
    "title": Check(
        "Give it a title in double angle brackets, such as <<title>>.",
        lambda text: re.search("<<[^<>]+>>", text) is not None,
    ),
    "json": Check("Answer with a JSON object and nothing else.", _is_object),
}
"""Kind -> check. The text is stripped first; an empty text follows no instruction."""


def fault(instructions: Any) -> str | None:
    """Return the reason why a value is not a valid list of instructions; None if it is."""
    if not isinstance(instructions, Sequence) or isinstance(instructions, str) or not instructions:
        return "its info has no list `instructions`"
    for one in instructions:
        if not isinstance(one, Mapping) or one.get("kind") not in CHECKS:
            return f"its info has no instruction of a known kind: {one!r:.80}"
        try:
            followed(one, "a")
            wrong = _wrong_option(one)
        except (TypeError, AttributeError):
            wrong = "the wrong options"
        if wrong:
            return f"its info has an instruction with {wrong}: {one!r:.80}"
    return None


def _wrong_option(instruction: Instruction) -> str | None:
    """Return an error for an option that no text could satisfy or that makes the check meaningless."""
    word, phrase, count = (instruction.get(name) for name in ("word", "phrase", "count"))
    if word is not None and _words(word) != [word.casefold()]:
        return "a word that is not a single word"
    if phrase is not None and (not phrase or phrase != phrase.strip()):
        return "a phrase that is empty or has spaces around it"
    return "a count that is not an integer" if "count" in instruction and type(count) is not int else None


def followed(instruction: Instruction, text: str) -> bool:
    """Tell whether a text follows an instruction."""
    text, options = text.strip(), {name: value for name, value in instruction.items() if name != "kind"}
    return bool(text) and CHECKS[instruction["kind"]].followed(text, **options)


def said(instruction: Instruction) -> str:
    """Return an instruction in words."""
    return CHECKS[instruction["kind"]].says.format(**instruction)
