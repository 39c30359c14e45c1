r"""Read answers in `\boxed{}`: join boxes that form one answer, and check the text around a box."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from posttrain.answers.following import changes_value
from posttrain.answers.nodes import Unreadable

LONGEST_BOX = 2000
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,3}\{")
_PLAIN = (
    r"text\w*|math\w+|displaystyle|underline|color|[lL]arge|LARGE|[hH]uge|bf|bm|boldsymbol|ensuremath|q?quad|[hv]space|"
    r"begin|end|tag|blacksquare|square|Box|checkmark|qed|mbox|rm|newline|par|right|left|hfill|centering|degree|"
    r"therefore|because|implies|iff|to|mapsto|\w*[rR]ightarrow|in|equiv|cong|approx|simeq|sim|pmod|bmod|mod|colon|"
    r"[cl]?dots"
)
"""LaTeX commands next to a box that do not change its value: layout and relations."""
_BEFORE = re.compile(
    rf"(?:\\(?!(?:{_PLAIN})[^A-Za-z]*\Z)[A-Za-z]+[ ]*|(?<![\\A-Za-z])[A-Za-z]|\d\.|[\d)'][ *]*(?<![)' ] )"
    r"|\d:|\d\{|(?:(?<![A-Za-z\\])[a-z]|\\(?!therefore|text)[a-z]+)(?:\\left)?\(\s*|[-+/^<≤≥±×÷·√~]\s*"
    rf"|(?<!\w)\\(?!(?:{_PLAIN})\b)[A-Za-z]+\s*(?:\[[^\]]*\])?(?:\{{[^{{}}]*\}})*\s*\{{?\s*|[\^_]\{{?)\Z"
)
"""Text directly before a box that makes it a part of another value: a factor, sign, digit, fraction or root."""
_NEGATED = re.compile(r"(?:\\not\s*(?:\\[A-Za-z]+|=)|\\neq?|\\nequiv|≠|!=)[\s$({]*\Z")
"""A relation directly before a box that the box does not satisfy."""
_BULLET = re.compile(r"(?:\A|\n)[ \t>]*[-+*][ \t]+\Z|[A-Za-z}.:]\s*-+\s\Z|[=-]>\s*\Z")
_SPACE = re.compile(r"\\[,;:! ]|~(?!~)(?<!~~)")
_SPACES = re.compile(rf"{_SPACE.pattern}|\\q?quad(?![A-Za-z])|\\\\(?=\s*[-+=])")
_MEMBER = re.compile(r"(?:\\\{|\(|(?<!\\)\[)(?:[^(){}\nA-Za-z]|\b[a-z]\b|\\[a-z]+)*[,;]\s*\Z")
"""The start of a set or tuple directly before a box that contains its last member."""
_AFTER = re.compile(
    rf"(?:\\?\}})*[ \t]*(?:\d|[.,]\d|_|\{{|\^(?!\s*\{{?\s*(?:\\circ|°))|(?<! )[A-Za-z](?![A-Za-z])"
    r"|!(?=\s*(?:\$|\\\)|[-+*/=]))|\?|[$)\]\\]*[ \t]*(?:[-+/<>≤≥±×÷·](?=[ \t]?[$\d\\(]|[ \t]?[a-z]\b)|\*[ \t]?[\d\\(])"
    r"|[:,;|][ \t]*-?[.\d]|\.\.|[,;][ \t]*(?:\\frac|[b-hj-z]\b)"
    rf"|\\(?!(?:{_PLAIN})(?![A-Za-z]))[A-Za-z]+|[ \t$]*(?:\\text\w*\s?\{{)?\s*\b(?:or|and)\b\s*\}}?[ \t]*\$?[-\d\\])"
)
"""The same directly after a box, or another value that is joined to it."""
_FACTORIAL = re.compile(r"(?:^|\n)(?![^\n]*\b[A-Za-z]{2,}\b)[^\n]*\Z")
"""A line without words, on which `!` is not an exclamation mark."""
_JOIN = re.compile(
    r"(?:[\s$,;&/()\[\]]|\\[,;:! ()\[\]\\]|\\q?quad\b|\\(?:text\w*|mathrm)\s?\{|\}|"
    r"\b(?:and|or|und|oder|et|ou|y|o|и|или)\b|[和与或、，]|(?P<name>[A-Za-z](?:_\{?\w\}?)?)\s*=)*\Z"
)
"""Text that may separate two boxes of one answer."""
_UNIT = re.compile(
    r"[\s$~]*(?:\\?%|\\(?:text\w*|mathrm|mbox)\s?\{[^{}\n]{1,40}\}(?:\s?\^\s?\{?\d\}?)?|(?:\\[,;: ]|[ \t])?"
    r"(?:[A-Za-z°]{1,20}|[\u4e00-\u9fff]{1,4})[²³]?(?=\s*(?:[.,;:!)$\n。，]|\Z)))"
)


@dataclass(frozen=True)
class Mark:
    """A place that marks the answer."""

    text: str
    """The marked answer; for a mark without an end, the rest of the line."""
    start: int
    end: int
    kind: Literal["boxed", "hashes", "answer_is", "tags"] = "boxed"


def boxes(text: str) -> list[Mark]:
    r"""Return every \boxed{...} with matching braces; for nested boxes, only the outer box."""
    marks: list[Mark] = []
    for mark in _BOX.finditer(text):
        if marks and marks[-1].end > mark.start():
            continue
        level, place = 1, mark.end()
        while place < len(text) and place - mark.end() < LONGEST_BOX and level:
            sign = text[place]
            place += 2 if sign == "\\" else 1
            level += (sign == "{") - (sign == "}")
        if level:
            raise Unreadable("a box without an end")
        marks.append(Mark(text[mark.end() : place - 1], mark.start(), place))
    return marks


def groups(text: str) -> list[Mark]:
    """Return the boxes. Boxes that form one answer are joined."""
    joined: list[list[tuple[str, Mark]]] = []
    signs: list[str] = []
    for box in boxes(text):
        previous = joined[-1][-1][1] if joined else None
        between = text[previous.end : box.start] if previous else ""
        join = _JOIN.match(between) if previous and len(between) < 100 and "\n\n" not in between else None
        if join:
            joined[-1].append((join["name"] or "", box))
            signs[-1] += between
        else:
            named = re.search(r"([A-Za-z](?:_\{?\w\}?)?)\s*=\s*\Z", text[max(0, box.start - 12) : box.start])
            joined.append([(named[1] if named else "", box)])
            signs.append("")
    return [_in_brackets(text, _together(group, sign), group) for group, sign in zip(joined, signs, strict=True)]


def _in_brackets(text: str, mark: Mark, group: Sequence[tuple[str, Mark]]) -> Mark:
    r"""Several boxes in brackets are a point: (\boxed{5}, \boxed{3})."""
    before, after = text[max(0, mark.start - 12) : mark.start], text[mark.end : mark.end + 12]
    opened, closed = re.search(r"(?<![A-Za-z])\((?:\\left)?\s*\Z", before), re.match(r"\s*(?:\\right)?\)", after)
    several = len({box.text.strip() for _, box in group}) > 1 and not any(name for name, _ in group)
    if opened is None or closed is None or not several:
        return mark
    return Mark(f"({mark.text})", mark.start - (len(before) - opened.start()), mark.end + closed.end())


def _together(group: Sequence[tuple[str, Mark]], between: str) -> Mark:
    """Return joined boxes as one answer; if they are equal, only the last."""
    first, last = group[0][1], group[-1][1]
    names = {name for name, _ in group}
    if len({box.text.strip() for _, box in group}) == 1:
        return Mark(last.text, first.start, last.end)
    if len(names) > 1 and "" not in names:
        return Mark(", ".join(f"{name} = {box.text.strip()}" for name, box in group), first.start, last.end)
    either = re.search(r"\b(?:or|oder|ou|или)\b|[<>]|\\[lg]eq?\b|\\infty", between + first.text)
    return Mark((" or " if either else ", ").join(box.text.strip() for _, box in group), first.start, last.end)


def in_context(text: str, box: Mark) -> str:
    """Return a box's answer with a following unit or percent sign.

    Raise Unreadable if it is a part of another value.
    """
    before = _SPACE.sub(" ", text[max(0, box.start - 200) : box.start])
    after = _SPACES.sub(" ", text[box.end : box.end + 200])
    if not box.text.strip(" .{}") or touches(before, after):
        raise Unreadable("the box is empty, or contains only a part of the answer")
    if changes_value(text[box.end : box.end + 40]):
        raise Unreadable("the words after the box change its value")
    unit, value = _UNIT.match(text, box.end), box.text.strip(" ~")
    return f"{value} {unit[0].strip(' $~')}" if unit and _is_unit(unit[0].strip(" $~")) else value


def _is_unit(text: str) -> bool:
    """Tell whether a text is a known unit, a percent sign, or `thousand`."""
    from posttrain.answers.tokens import tokens
    from posttrain.answers.units import unit_of

    try:
        scale, unit = unit_of(tokens(f"1 {text}")[1:])
    except Unreadable:
        return False
    counted = unit is None or any(name.startswith("W:") and name.isascii() for name, _ in unit.dimensions)
    return scale > 1 or not counted


def touches(before: str, after: str) -> bool:
    """Tell whether a box is only a part of a value, because of the texts around it."""
    if (after.startswith("!") and _FACTORIAL.search(before)) or (_BEFORE.search(before) and not _BULLET.search(before)):
        return True
    return bool(_NEGATED.search(before) or _MEMBER.search(before) or _AFTER.match(after))
