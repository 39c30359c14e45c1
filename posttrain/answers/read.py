"""Read a final answer: a value, list, set, interval, inequality, equation, matrix, or words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache

from posttrain.answers.intervals import complement, intersection, reals_of, union
from posttrain.answers.matrices import matrix_of
from posttrain.answers.nodes import (
    INFINITY,
    WHOLE_LINE,
    Answer,
    Based,
    Equation,
    Items,
    Named,
    Quantity,
    Reals,
    Span,
    Unreadable,
    Var,
)
from posttrain.answers.phrases import ZERO, described, in_digits, phrase
from posttrain.answers.quantities import compound, items, quantity
from posttrain.answers.relations import RELATIONS, relation
from posttrain.answers.token_runs import (
    OPEN,
    Run,
    encloses,
    is_fenced,
    name_of,
    split,
    top,
    whole,
    without_commas,
    without_label,
)
from posttrain.answers.tokens import FULL_WIDTH, Token, tokens

_FENCES = {("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), ("\\{", "\\}"), ("\\langle", "\\rangle"), ("{", "}")}
_REALS = {
    "_{>0}": (ZERO, False, INFINITY),
    "^+": (ZERO, False, INFINITY),
    "^{+}": (ZERO, False, INFINITY),
    "_{\\ge0}": (ZERO, True, INFINITY),
}
_OF_WHAT = re.compile(
    r"(?<=[\d%}$]) of (?:the|a|an|all|his|her|their|its|your|my|them|these|those)\b"
    r"(?: (?!half|third|quarter|fifth|tenth|hundred|thousand|million|dozen|percent|sum|square|number)[a-z]+){0,3}\Z"
)
"""The whole that a share refers to: 3/8 of the pizza."""
MODULUS = re.compile(r"\s*(?:\\pmod|\(\s*\\?b?mod\b)\s*(\{?\w{1,12}\}?)\s*\)?\s*\$?\Z")
"""The modulus of a congruence, at the end of an answer."""


_CASES = re.compile(
    r"(?:\\left\s*\\\{\s*\\begin\s*\{array\}\s*\{[lcr ]*\}|\\begin\s*\{[dr]?cases\})(?P<rows>.*?)"
    r"\\end\s*\{(?:array\}\s*\\right\s*\.|[dr]?cases\})",
    re.DOTALL,
)


_SAID_FRACTION = re.compile(r"(\d+) (?:out of|over|in) (\d+)")
_SAID_SIGN = re.compile(r"(?:minus|negative) (\d[\d.,/]*(?: [a-z°]+)?)", re.IGNORECASE)
_SAID_EQUAL = re.compile(r"([a-z]) (?:equals|is equal to) (\S+)")


@lru_cache(maxsize=2048)  # an answer is read by each of its checks
def read(text: str, *, units: bool = True) -> Answer:
    """Return a whole text as an answer. `units`: letters after a number and a space may be units."""
    trimmed = MODULUS.sub("", _trimmed(_CASES.sub(_rows, text.replace("{:}", ":"))))
    bare = re.sub(r"\A(?:\$+|\\[(\[])\s*|\s*(?:\$+|\\[)\]])\Z", "", trimmed)
    if (matrix := matrix_of(bare)) is not None:
        return matrix
    words = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}\\]*)\}", r"\1", trimmed).strip(" $*_`\"'.")
    words = re.sub(r"(?:\s|\\[,;: !]|~)+", " ", words.replace("\\!", "").translate(FULL_WIDTH))
    if re.fullmatch(r"\d+(?: to \d+)+", words):  # a ratio
        trimmed = words.replace(" to ", ":")
    if fraction := _SAID_FRACTION.fullmatch(words):
        trimmed = words = f"{fraction[1]}/{fraction[2]}"
    if negative := _SAID_SIGN.fullmatch(words):
        trimmed = words = f"-{negative[1]}"
    if equal := _SAID_EQUAL.fullmatch(words):
        trimmed = words = f"{equal[1]} = {equal[2]}"
    if counted := in_digits(words):
        trimmed = words = counted
    if (said := phrase(words)) is not None:
        return said
    numbers = described(words, lambda value: whole(tokens(value)))
    if isinstance(numbers, Reals):
        return numbers
    return Reader(units=units).answer(tokens(numbers or trimmed))


def _rows(match: re.Match[str]) -> str:
    """Return the rows in braces as a list, or as a set of values with conditions."""
    rows = [row for row in re.split(r"\\\\", match["rows"]) if row.strip()]
    rows = [re.sub(r"\\(?:text|mathrm)\s*\{\s*(?:if|for|when|,)?\s*\}|,?\s*(?=&)", "", row) for row in rows]
    if not any("&" in row for row in rows):
        return ", ".join(row.strip(" ,;.") for row in rows)
    return r"\{" + ", ".join(f"({row.replace('&', ',').strip(' ,;.')})" for row in rows) + r"\}"


def _trimmed(text: str) -> str:
    """Return the text without final punctuation."""
    text = text.strip()
    if re.search(r"(?:\.\.\.|…|\\l?dots)\W*\Z", text):
        raise Unreadable("an answer that is not finished")
    while (shorter := re.sub(r"(?<!\\)[.:]+(\**\)?\$*)\Z", r"\1", text).strip()) != text and shorter:
        text = shorter
    return _OF_WHAT.sub("", text)


class Reader:
    """Reads tokens as an answer."""

    def __init__(self, *, units: bool) -> None:
        self._units = units

    def answer(self, run: Run) -> Answer:
        """Return the tokens as an answer."""
        if not run:
            raise Unreadable("empty")
        run = without_label(run)
        if self._units and (parts := compound(run)) is not None:
            return parts
        return self._joined(without_commas(run))

    def _joined(self, run: Run) -> Answer:
        """Return parts joined by `or`, `and` and commas."""
        alternatives = split(run, "or", "\\lor")
        if len(alternatives) > 1:
            answers = [self._joined(alternative) for alternative in alternatives]
            if all(isinstance(answer, Reals) for answer in answers):
                return union([answer for answer in answers if isinstance(answer, Reals)])
            names = {answer.name for answer in answers if isinstance(answer, Named)}
            if len(names) > 1:
                raise Unreadable("alternatives with different names")
            inequalities = [isinstance(answer, Reals) and answer.variable is not None for answer in answers]
            named = [isinstance(answer, Named) for answer in answers]
            if any(inequalities) and all(a or b for a, b in zip(inequalities, named, strict=True)):  # x = 0 or x > 3
                return union([_values_of(answer) for answer in answers])
            return _listed(alternatives, answers)
        parts = split(run, "and", "\\land", ",", ";")
        if len(parts) == 1:
            return self._one(run)
        answers = [self._one(part) for part in parts]
        if any(isinstance(answer, Reals) for answer in answers):
            commas = len(split(run, ",", ";")) > 1 and not any(token.text == "\\ne" for token in run)
            if not all(isinstance(answer, Reals) and answer.variable for answer in answers) or commas:
                raise Unreadable("inequalities that are joined by commas")
            return intersection([answer for answer in answers if isinstance(answer, Reals)])
        return _listed(parts, answers)

    def _one(self, run: Run) -> Answer:
        """Return a relation, a union of sets, or a value."""
        if not run:
            raise Unreadable("an empty part of a list")
        for sign in ("\\in", "in"):
            parts = split(run, sign)
            if len(parts) == 2 and (name := name_of(parts[0])) is not None and (len(name) == 1 or name[0] == "("):
                return self._members(name, parts[1])
        if any(token.text in RELATIONS for token in top(run)):
            return relation(run, self._sets)
        return self._sets(run)

    def _members(self, name: str, run: Run) -> Answer:
        inner = self._sets(run)
        if isinstance(inner, Items) and inner.kind == "set":
            return Named(name, inner)
        inner = reals_of(inner)
        return Reals(inner.spans, name)

    def _sets(self, run: Run) -> Answer:
        """Return sets joined by a union or a difference, or one value."""
        if not run:
            raise Unreadable("an empty part")
        signs = {token.text for token in top(run)}
        if "\\setminus" in signs and signs & {"\\cup", "\\cap", "U", "union"}:
            raise Unreadable("unions and differences of sets without brackets")
        parts = split(run, "\\cup", "U", "union") if any(token.text in OPEN for token in run) else [run]
        if len(parts) > 1:
            return union([reals_of(self._sets(part)) for part in parts])
        real = run[0].text in ("\\mathbb", "R")
        parts = split(run, "\\setminus", "-") if real else split(run, "\\setminus")
        if len(parts) == 2 and all(parts) and (real or is_fenced(parts[0])):
            first = WHOLE_LINE if parts[0][0].text == "R" else reals_of(self._value(parts[0]))
            return intersection([first, complement(self._value(parts[1]))])
        return self._value(run)

    def _value(self, run: Run) -> Answer:
        texts = "".join(token.text for token in run)
        if texts in ("\\emptyset", "\\{\\}", "{}"):
            return Items("set", ())
        if texts in ("\\mathbb{R}", "\\mathbbR"):
            return WHOLE_LINE
        if texts.startswith("\\mathbb{R}") and texts[len("\\mathbb{R}") :] in _REALS:
            low, closed, high = _REALS[texts[len("\\mathbb{R}") :]]
            return Reals((Span(low, closed, high, False),))
        if (texts[-1:], texts[:1]) in ((")", "("), ("]", "["), ("]", "("), (")", "[")) or run[0].text in OPEN:
            fenced = self._fences(run)
            if fenced is not None:
                return fenced
        if (french := self._french(run)) is not None:
            return french
        if len(run) > 3 and run[0].kind == "word" and len(run[0].text) == 1 and run[0].text.isupper():
            point = self._fences(run[1:]) if run[1].text == "(" else None
            if isinstance(point, Items) and point.kind == "(":
                return Named(run[0].text, point)
        ratio = split(run, ":")
        if 1 < len(ratio) <= 6:
            return Items(":", tuple(Quantity(whole(part)) for part in ratio))
        if based := re.fullmatch(r"\(?([0-9A-F]+)\)?_\{?(?:\(?)(\d{1,2})(?:\)?)\}?", texts):
            return Based(based[1], int(based[2]))
        if len(split(run, "\\over")) == 2:
            return quantity([Token("sign", "{", gap=False), *run, Token("sign", "}", gap=False)], units=self._units)
        return quantity(run, units=self._units)

    def _french(self, run: Run) -> Answer | None:
        """Return ]1, 2] as (1, 2]; None for another notation."""
        ends = run[0].text, run[-1].text
        inner = run[1:-1]
        if (
            ends[0] not in "[]"
            or ends[1] not in "[]"
            or ends == ("[", "]")
            or any(token.text in OPEN for token in inner)
        ):
            return None
        parts = split(inner, ";") if any(token.text == ";" for token in inner) else split(inner, ",")
        if len(parts) != 2:
            raise Unreadable("an interval without two ends")
        return Reals((Span(whole(parts[0]), ends[0] == "[", whole(parts[1]), ends[1] == "]"),))

    def _fences(self, run: Run) -> Answer | None:
        """Return members between brackets; None if the brackets only group, or do not enclose everything."""
        opening, closing = run[0].text, run[-1].text
        if (opening, closing) not in _FENCES or not encloses(run):
            return None
        inner = run[1:-1]
        if opening == "\\{" or (opening == "{" and len(split(inner, ",", ";", "|")) > 1):
            return self._set(inner)
        members = split(inner, ",", ";")
        if len(members) == 1 or opening == "{":
            if opening != closing and (opening, closing) not in (("(", ")"), ("[", "]"), ("{", "}")):
                raise Unreadable("brackets around one value")
            stacked = any(token.text in ("\\over", "\\choose") for token in inner)
            return self._one(inner) if opening in "({" and inner and not stacked else None
        answers = [self._one(member) for member in members]
        signed = [n for n, member in enumerate(members) if any(token.text in ("\\pm", "\\mp") for token in member)]
        if opening == "(" and closing == ")" and len(signed) == 1 and isinstance(answers[signed[0]], Items):
            (place,), both = signed, answers[signed[0]]
            assert isinstance(both, Items)
            return Items(
                "set", tuple(Items("(", (*answers[:place], member, *answers[place + 1 :])) for member in both.members)
            )
        if (opening, closing) in (("(", ")"), ("\\langle", "\\rangle")):
            return Items(opening.replace("\\langle", "<"), tuple(answers))
        if len(answers) == 2 and all(isinstance(answer, Quantity) and answer.unit is None for answer in answers):
            low, high = (answer.value for answer in answers if isinstance(answer, Quantity))
            return Reals((Span(low, opening == "[", high, closing == "]"),))
        if (opening, closing) == ("[", "]"):
            return Items("[", tuple(answers))
        raise Unreadable("brackets that do not match")

    def _set(self, inner: Run) -> Answer:
        """Return the contents of a set's braces."""
        if not inner:
            return Items("set", ())
        for sign in ("|", ":"):
            parts = split(inner, sign)
            if len(parts) == 2:
                named, rule = self._one(parts[0]), self._joined(parts[1])
                if isinstance(rule, Named) and named == Quantity(Var(rule.name)):
                    return rule.value
                if isinstance(rule, Reals) and named == Quantity(Var(rule.variable or "")):
                    return Reals(rule.spans)
                if isinstance(rule, Reals) and isinstance(named, Reals) and named.variable == rule.variable:
                    return Reals(intersection([named, rule]).spans)
                raise Unreadable("a set with a rule that is not understood")
        answers = [self._one(member) for member in split(inner, ",", ";")]
        if any(isinstance(answer, Reals | Equation) for answer in answers):
            raise Unreadable("a set of relations")
        if any(isinstance(answer, Items) and answer.kind == "set" for answer in answers):
            signs = any(token.text in ("\\pm", "\\mp") for token in inner)
            return items(answers) if signs else Items("set", tuple(answers))
        return items(answers)


def _values_of(answer: Answer) -> Reals:
    """Return the numbers of an inequality or of `x = 0`."""
    if isinstance(answer, Named):
        members = answer.value if isinstance(answer.value, Items) else Items("set", (answer.value,))
        return Reals(reals_of(members).spans, answer.name)
    return reals_of(answer)


def _listed(parts: Sequence[Run], answers: Sequence[Answer]) -> Answer:
    """Return the listed answers. Sets in a list stay sets."""
    fenced = [bool(part) and part[0].text in ("\\{", "{") and encloses(part) for part in parts]
    if any(
        isinstance(answer, Items) and answer.kind == "set" and inside
        for answer, inside in zip(answers, fenced, strict=True)
    ):
        if not all(fenced):
            raise Unreadable("a list of sets and other values")
        return Items("set", tuple(answers))
    return items(answers)
