r"""The final answer in `\boxed{}`, and whether what stands around the box is part of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.answers.denials import JOINED, are_alternatives, check_after, check_before
from posttrain.answers.nodes import Unreadable

LONGEST_BOX = 2000
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{")
_PLACEHOLDERS = frozenset({"", "answer", "your answer", "...", "\\ldots", "\\dots", "final answer", "n", "{}"})
_PLAIN = (
    r"text\w*|math\w+|displaystyle|underline|color|[lL]arge|LARGE|[hH]uge|bf|bm|boldsymbol|ensuremath|q?quad|[hv]space|"
    r"therefore|implies|iff|Rightarrow|Longrightarrow|rightarrow|to|begin|end|tag|blacksquare|square|Box|checkmark|qed|"
    r"because|mbox|rm|newline|par|right|left|degree|hfill|centering"
)
"""Commands of LaTeX next to a box that say nothing about its value."""
_BEFORE = re.compile(
    rf"(?:\\(?!(?:{_PLAIN})[^A-Za-z]*\Z)[A-Za-z]+[ ]*|(?<![\\A-Za-z])[A-Za-z]|\d\.|[\d)'][ *]*(?<![)' ] )"
    r"|\d:|\d\{|(?:(?<![A-Za-z\\])[a-z]|\\(?!therefore|text)[a-z]+)(?:\\left)?\(\s*"
    rf"|(?<!\w)\\(?!(?:{_PLAIN})\b)[A-Za-z]+\s*(?:\[[^\]]*\])?(?:\{{[^{{}}]*\}})*\s*\{{?\s*|[\^_]\{{?)\Z"
)
"""Directly before a box, what makes it a part of another value: a factor, a digit, a fraction, a root."""
_SPACE = re.compile(r"\\[,;:! ]|~(?!~)(?<!~~)")
_SPACES = re.compile(rf"{_SPACE.pattern}|\\q?quad(?![A-Za-z])|\\\\(?=\s*[-+=])")
"""Spaces of LaTeX."""
_FACTORIAL = re.compile(r"(?:^|\n)(?![^\n]*\b[A-Za-z]{2,}\b)[^\n]*\Z")
"""A line without words, on which `!` is no exclamation mark."""
_MEMBER = re.compile(r"(?:\\\{|\(|(?<!\\)\[)(?:[^(){}\nA-Za-z]|\b[a-z]\b|\\[a-z]+)*[,;]\s*\Z")
"""Directly before a box, the beginning of a set or tuple whose last member is in the box."""
_AFTER = re.compile(
    rf"(?:\\?\}})*[ \t]*(?:\d|[.,]\d|_|\{{|\^(?!\s*\{{?\s*(?:\\circ|°))|(?<! )[A-Za-z](?![A-Za-z])"
    r"|!(?=\s*(?:\$|\\\)|[-+*/=]))"
    r"|[:,;|][ \t]*-?[.\d]|\.\.|[,;][ \t]*(?:\\[lc]?dots|\\frac|[b-hj-z]\b)"
    rf"|\\(?!(?:{_PLAIN})(?![A-Za-z]))[A-Za-z]+)"
)
"""Directly after a box, the same."""


@dataclass(frozen=True)
class Found:
    """A final answer and where it stands."""

    text: str
    start: int
    end: int


def boxes(text: str) -> list[Found]:
    r"""Return every \boxed{...} with braces that match; the outer one of a box in a box."""
    found: list[Found] = []
    for mark in _BOX.finditer(text):
        if found and found[-1].end > mark.start():
            continue
        level, place = 1, mark.end()
        while place < len(text) and place - mark.end() < LONGEST_BOX and level:
            sign = text[place]
            place += 2 if sign == "\\" else 1
            level += (sign == "{") - (sign == "}")
        if level:
            raise Unreadable("a box without an end")
        found.append(Found(text[mark.end() : place - 1], mark.start(), place))
    return found


def boxed(text: str) -> Found | None:
    """Return the last box, with those that are given together with it."""
    all_boxes = boxes(text)
    if not all_boxes:
        if re.search(r"\\(?:boxed|fbox)\b", text):
            raise Unreadable("a box without an end")
        return None
    last = all_boxes[-1]
    if last.text.strip().lower() in _PLACEHOLDERS:
        raise Unreadable("the last box is empty")
    joined = given_together(text, all_boxes)
    if joined != last:
        check_before(text[: joined.start])
        check_after(text[last.end :])
        return joined
    start = text.rfind("\n", 0, last.start) + 1
    others = [box for box in all_boxes[:-1] if box.start >= start and box.text.strip() != last.text.strip()]
    if others and are_alternatives(text[others[-1].end : last.start]):
        raise Unreadable("two boxes on one line")
    before, after = _SPACE.sub(" ", text[: last.start]), _SPACES.sub(" ", text[last.end :])
    if touches(before, after):
        raise Unreadable("the box holds only a part of the answer")
    check_before(before)
    check_after(after, last.text)
    percent = re.match(r"[ \t$]*(?:\\?%|per ?cent\b)", after)
    return Found(rf"{last.text}\%", last.start, last.end) if percent else last


def given_together(text: str, found: Sequence[Found]) -> Found:
    """Return the last box and those that are joined to it as one answer; the last alone where they say the same."""
    joined = [found[-1]]
    for box in reversed(found[:-1]):
        between = text[box.end : joined[0].start]
        if "\n\n" in between or not JOINED.match(between):
            break
        joined.insert(0, box)
    if len({box.text.strip() for box in joined}) == 1:
        return found[-1]
    return Found(" or ".join(box.text.strip() for box in joined), joined[0].start, joined[-1].end)


def touches(before: str, after: str) -> bool:
    """Return whether the texts around a box make it a part of another value."""
    factorial = after.startswith("!") and _FACTORIAL.search(before[-200:])
    prime = after.startswith("'") and "'" not in before[-3:]
    matrix = before.rfind("matrix}", max(0, (begun := before.rfind("\\begin{")))) > begun > before.rfind("\\end{")
    if factorial or prime or matrix:
        return True
    return bool(_BEFORE.search(before[-200:]) or _MEMBER.search(before[-200:]) or _AFTER.match(after))
