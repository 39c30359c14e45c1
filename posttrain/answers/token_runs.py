"""Runs of tokens: at the top level, in brackets, between separators, or as a name."""

from __future__ import annotations

import re
from collections.abc import Sequence

from posttrain.answers.expression import Parser
from posttrain.answers.nodes import Node, Unreadable, Var, word_set
from posttrain.answers.tokens import Token

Run = Sequence[Token]
MOST_MEMBERS = 60
OPEN = {"(": ")", "[": "]", "\\{": "\\}", "{": "}", "\\langle": "\\rangle"}
HEDGES = word_set("or not no and but maybe perhaps if either neither nor unless possibly")


def whole(run: Run, *, units: bool = False) -> Node:
    """Return all tokens as one expression."""
    parser = Parser(run, units=units)
    node = parser.expression()
    if parser.next is not None:
        raise Unreadable(f"'{parser.next.text}' after an expression")
    return node


def name_of(run: Run) -> str | None:
    """Return the name before `=`: a variable, f(2), or words; None for an expression."""
    if not run:
        return None
    texts = [token.text for token in run if token.text not in ("{", "}")]
    if _NAMES.fullmatch("".join(texts)):
        return "".join(texts)
    if run[0].kind == "word" and all(token.kind == "word" for token in run):
        words = [token.text.lower() for token in run]
        if words == ["e"] or words == ["i"] or words == ["pi"] or any(word in HEDGES for word in words):
            return None
        if any(word in _BAD_LABELS for word in words):
            raise Unreadable("a name other than the answer's")
        return " ".join(words) if len(words) > 1 or len(words[0]) > 1 else run[0].text
    if run[0].text in ("\\angle", "\\triangle", "\\overline", "\\Delta") and all(
        token.kind == "word" for token in run[1:] if token.text not in ("{", "}")
    ):
        return "".join(texts)
    if run[0].kind == "command" and len(run) == 1 and run[0].text[1:].isalpha() and run[0].text != "\\pi":
        try:
            return node.name if isinstance(node := whole(run), Var) else None
        except Unreadable:
            return None
    if run[0].text == "(" and encloses(run) and all(len(t) == 1 and t.isalpha() for t in texts[1:-1:2]):
        letters = texts[1:-1:2]
        if set(texts[2:-1:2]) != {","} or letters != sorted(letters):
            raise Unreadable("coordinates in an unusual order")
        return "".join(texts)
    if run[0].kind != "word" or len(run[0].text) > 3:
        return None
    if len(texts) == 3 and texts[1] == "_" and texts[2].isalnum():
        return "".join(texts)
    calls = len(run) > 3 and run[1].text == "(" and run[-1].text == ")" and encloses(run[1:])
    primed = texts[1:] == ["'"] or (texts[1:3] == ["'", "("] and texts[-1] == ")" and encloses(run[2:]))
    names = len(run[0].text) == 1 and run[0].text not in "xyzei"
    return "".join(texts) if (calls and names) or primed else None


def top(run: Run) -> list[Token]:
    """Return the tokens outside of all brackets."""
    level, result = 0, []
    for token in run:
        if token.text in OPEN:
            level += 1
        elif token.text in OPEN.values():
            level -= 1
        elif level == 0:
            result.append(token)
    return result


def split(run: Run, *separators: str) -> list[Run]:
    """Return the runs between separators outside of brackets. (1, 2] counts as brackets too."""
    level, start = 0, 0
    parts: list[Run] = []
    for place, token in enumerate(run):
        if token.text in OPEN:
            level += 1
        elif token.text in OPEN.values():
            level -= 1
        elif level == 0 and token.text in separators:
            parts.append(run[start:place])
            start = place + 1
    parts.append(run[start:])
    if len(parts) > MOST_MEMBERS:
        raise Unreadable(f"more than {MOST_MEMBERS} members")
    return parts


def without_commas(run: Run) -> Run:
    """Return the tokens without the comma of `1, 2, and 3` and `1, or 2`."""
    joins = ("and", "or")
    return [
        token
        for place, token in enumerate(run)
        if token.text != "," or place + 1 == len(run) or run[place + 1].text not in joins
    ]


def encloses(run: Run) -> bool:
    """Tell whether the last token closes the first token's bracket."""
    level = 0
    for place, token in enumerate(run):
        if token.text in OPEN:
            level += 1
        elif token.text in OPEN.values():
            level -= 1
            if level == 0:
                return place == len(run) - 1
    return False


def is_fenced(run: Run) -> bool:
    """Tell whether both ends are brackets."""
    return bool(run) and run[0].text in ("(", "[", "\\{") and run[-1].text in (")", "]", "\\}")


def without_label(run: Run) -> Run:
    """Return the tokens without `Domain:` or `the point` before them."""
    colon = next((n for n, token in enumerate(run) if token.text == ":"), 0)
    words = [token.text.lower() for token in run[:colon]]
    is_label = all(word.isalpha() and word not in HEDGES | _BAD_LABELS for word in words) and len("".join(words)) > 2
    if is_label and colon + 1 < len(run):
        return without_label(run[colon + 1 :])
    place = 3 if [token.text.lower() for token in run[:3]] == ["the", "answer", "is"] else 0
    while place < len(run) - 1 and run[place].text.lower() in _NOUNS:
        place += 1
    return run[place:]


_NAMES = re.compile(
    r"[a-zA-Z]\^-1\([a-z]\)|\\fracd(?:\^\d)?[a-z]?d[a-z](?:\^\d)?|d[a-z]/d[a-z]|[A-Z]\^(?:\d|-1|T)|[A-Z](?:\\(?:cap|cup|setminus)[A-Z])+"
    r"|(?:[Rr]ange|[Dd]omain|[Dd]om|[Rr]an|[Ii]mage)\([a-z]\)"
)
"""Names that look like expressions: derivatives, powers of a matrix, sets."""
_NOUNS = word_set("the an point points set interval pair ordered number numbers value values vector matrix coordinates")
_BAD_LABELS = word_set(
    "wrong incorrect false nor previous first except without half twice double triple minus plus negative check "
    "estimate guess attempt draft example question problem given opposite reciprocal inverse square old original "
    "approximately about"
)
