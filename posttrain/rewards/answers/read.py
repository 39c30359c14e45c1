"""Reads a final answer: one value, a list, a set, an interval, an inequality, an equation, a matrix, or words."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from posttrain.rewards.answers.expression import Parser, negative
from posttrain.rewards.answers.matrices import matrix_of
from posttrain.rewards.answers.numbers import exact, is_close, same_number
from posttrain.rewards.answers.phrases import ZERO, described, phrase
from posttrain.rewards.answers.runs import (
    MOST_MEMBERS,
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
from posttrain.rewards.answers.spans import complement, intersection, reals_of, union
from posttrain.rewards.answers.tokens import CURRENCIES, Token, tokens
from posttrain.rewards.answers.tree import (
    INFINITY,
    MINUS_INFINITY,
    WHOLE_LINE,
    Answer,
    Based,
    Call,
    Equation,
    Items,
    Named,
    Node,
    Num,
    Percent,
    Quantity,
    Reals,
    Span,
    Unit,
    Unreadable,
    Var,
    variables,
    walk,
)
from posttrain.rewards.answers.units import PERCENT, table, unit_of

RELATIONS = frozenset({"=", "<", ">", "\\le", "\\ge", "\\ne", "\\approx"})
_FENCES = {("(", ")"), ("[", "]"), ("(", "]"), ("[", ")"), ("\\{", "\\}"), ("\\langle", "\\rangle"), ("{", "}")}
_COMPOUND = ("L", "T", "M", "$", "angle")
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
"""What a share is of: 3/8 of the pizza."""


def read(text: str, *, units: bool = True) -> Answer:
    """The answer that a text is, all of it; `units`: letters after a number and a space may be units."""
    trimmed = _trimmed(text)
    bare = re.sub(r"\A(?:\$+|\\[(\[])\s*|\s*(?:\$+|\\[)\]])\Z", "", trimmed)
    if (matrix := matrix_of(bare)) is not None:
        return matrix
    words = re.sub(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}\\]*)\}", r"\1", trimmed).strip(" $*_`\"'.")
    words = re.sub(r"\s+", " ", words)
    if (said := phrase(words)) is not None:
        return said
    numbers = described(words, lambda value: whole(tokens(value)))
    if isinstance(numbers, Reals):
        return numbers
    return Reader(units=units).answer(tokens(numbers or trimmed))


def _trimmed(text: str) -> str:
    """The text without the punctuation that ends a sentence."""
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

    def answer(self, found: Run) -> Answer:
        """The answer that the tokens are."""
        if not found:
            raise Unreadable("empty")
        found = without_label(found)
        if (compound := self._compound(found)) is not None:
            return compound
        return self._joined(without_commas(found))

    def _joined(self, found: Run) -> Answer:
        """Parts joined by `or`, `and` and commas."""
        alternatives = split(found, "or", "\\lor")
        if len(alternatives) > 1:
            read = [self._joined(one) for one in alternatives]
            if all(isinstance(one, Reals) for one in read):
                return union([one for one in read if isinstance(one, Reals)])
            names = {one.name for one in read if isinstance(one, Named)}
            if len(names) > 1:
                raise Unreadable("alternatives with different names")
            inequalities = [isinstance(one, Reals) and one.variable is not None for one in read]
            named = [isinstance(one, Named) for one in read]
            if any(inequalities) and all(a or b for a, b in zip(inequalities, named, strict=True)):  # x = 0 or x > 3
                return union([_values_of(one) for one in read])
            return _listed(alternatives, read)
        parts = split(found, "and", "\\land", ",", ";")
        if len(parts) == 1:
            return self._one(found)
        read = [self._one(one) for one in parts]
        if any(isinstance(one, Reals) for one in read):
            commas = len(split(found, ",", ";")) > 1 and not any(one.text == "\\ne" for one in found)
            if not all(isinstance(one, Reals) and one.variable for one in read) or commas:
                raise Unreadable("inequalities that are joined by commas")
            return intersection([one for one in read if isinstance(one, Reals)])
        return _listed(parts, read)

    def _one(self, found: Run) -> Answer:
        """A relation, a union of sets, or a value."""
        if not found:
            raise Unreadable("an empty part of a list")
        for sign in ("\\in", "in"):
            parts = split(found, sign)
            if len(parts) == 2 and (name := name_of(parts[0])) is not None and (len(name) == 1 or name[0] == "("):
                return self._members(name, parts[1])
        if any(one.text in RELATIONS for one in top(found)):
            return self._relation(found)
        return self._sets(found)

    def _members(self, name: str, found: Run) -> Answer:
        inner = self._sets(found)
        if isinstance(inner, Items) and inner.kind == "set":
            return Named(name, inner)
        inner = reals_of(inner)
        return Reals(inner.spans, name)

    def _sets(self, found: Run) -> Answer:
        """Sets joined by a union or a difference, or one value."""
        if not found:
            raise Unreadable("an empty part")
        parts = split(found, "\\cup", "U", "union") if any(one.text in OPEN for one in found) else [found]
        if len(parts) > 1:
            return union([reals_of(self._sets(one)) for one in parts])
        real = found[0].text in ("\\mathbb", "R")
        parts = split(found, "\\setminus", "-") if real else split(found, "\\setminus")
        if len(parts) == 2 and all(parts) and (real or is_fenced(parts[0])):
            first = WHOLE_LINE if parts[0][0].text == "R" else reals_of(self._value(parts[0]))
            return intersection([first, complement(self._value(parts[1]))])
        return self._value(found)

    def _value(self, found: Run) -> Answer:
        texts = "".join(one.text for one in found)
        if texts in ("\\emptyset", "\\{\\}", "{}"):
            return Items("set", ())
        if texts in ("\\mathbb{R}", "\\mathbbR"):
            return WHOLE_LINE
        if texts.startswith("\\mathbb{R}") and texts[len("\\mathbb{R}") :] in _REALS:
            low, closed, high = _REALS[texts[len("\\mathbb{R}") :]]
            return Reals((Span(low, closed, high, False),))
        if (texts[-1:], texts[:1]) in ((")", "("), ("]", "["), ("]", "("), (")", "[")) or found[0].text in OPEN:
            fenced = self._fences(found)
            if fenced is not None:
                return fenced
        if (french := self._french(found)) is not None:
            return french
        if len(found) > 3 and found[0].kind == "word" and len(found[0].text) == 1 and found[0].text.isupper():
            point = self._fences(found[1:]) if found[1].text == "(" else None
            if isinstance(point, Items) and point.kind == "(":
                return Named(found[0].text, point)
        ratio = split(found, ":")
        if 1 < len(ratio) <= 6:
            return Items(":", tuple(Quantity(whole(one)) for one in ratio))
        if based := re.fullmatch(r"([0-9A-F]+)_\{?(?:\(?)(\d{1,2})(?:\)?)\}?", texts):
            return Based(based[1], int(based[2]))
        if len(split(found, "\\over")) == 2:
            return self.quantity([Token("sign", "{", gap=False), *found, Token("sign", "}", gap=False)])
        return self.quantity(found)

    def _french(self, found: Run) -> Answer | None:
        """]1, 2] is (1, 2]."""
        ends = found[0].text, found[-1].text
        inner = found[1:-1]
        if ends[0] not in "[]" or ends[1] not in "[]" or ends == ("[", "]") or any(one.text in OPEN for one in inner):
            return None
        parts = split(inner, ";") if any(one.text == ";" for one in inner) else split(inner, ",")
        if len(parts) != 2:
            raise Unreadable("an interval without two ends")
        return Reals((Span(whole(parts[0]), ends[0] == "[", whole(parts[1]), ends[1] == "]"),))

    def _fences(self, found: Run) -> Answer | None:
        """Members between brackets; None: the brackets only group, or are not around all of it."""
        opening, closing = found[0].text, found[-1].text
        if (opening, closing) not in _FENCES or not encloses(found):
            return None
        inner = found[1:-1]
        if opening == "\\{" or (opening == "{" and len(split(inner, ",", ";", "|")) > 1):
            return self._set(inner)
        members = split(inner, ",", ";")
        if len(members) == 1 or opening == "{":
            if opening != closing and (opening, closing) not in (("(", ")"), ("[", "]"), ("{", "}")):
                raise Unreadable("brackets around one value")
            stacked = any(one.text in ("\\over", "\\choose") for one in inner)
            return self._one(inner) if opening in "({" and inner and not stacked else None
        read = [self._one(one) for one in members]
        signed = [n for n, one in enumerate(members) if any(token.text in ("\\pm", "\\mp") for token in one)]
        if opening == "(" and closing == ")" and len(signed) == 1 and isinstance(read[signed[0]], Items):
            (place,), both = signed, read[signed[0]]
            assert isinstance(both, Items)
            return Items("set", tuple(Items("(", (*read[:place], one, *read[place + 1 :])) for one in both.members))
        if (opening, closing) in (("(", ")"), ("\\langle", "\\rangle")):
            return Items(opening.replace("\\langle", "<"), tuple(read))
        if len(read) == 2 and all(isinstance(one, Quantity) and one.unit is None for one in read):
            low, high = (one.value for one in read if isinstance(one, Quantity))
            return Reals((Span(low, opening == "[", high, closing == "]"),))
        if (opening, closing) == ("[", "]"):
            return Items("[", tuple(read))
        raise Unreadable("brackets that do not match")

    def _set(self, inner: Run) -> Answer:
        """What is between the braces of a set."""
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
        read = [self._one(one) for one in split(inner, ",", ";")]
        if any(isinstance(one, Reals | Equation) for one in read):
            raise Unreadable("a set of relations")
        if any(isinstance(one, Items) and one.kind == "set" for one in read):
            signs = any(one.text in ("\\pm", "\\mp") for one in inner)
            return _items(read) if signs else Items("set", tuple(read))
        return _items(read)

    def _relation(self, found: Run) -> Answer:
        """`x = 5`, `9 + 9 = 18`, `1/3 ≈ 0.333`, `1 < x < 5`, `y = 2x + 3`."""
        signs = [one.text for one in top(found) if one.text in RELATIONS]
        parts = split(found, *RELATIONS)
        if len(parts) > 12:
            raise Unreadable("too many relations")
        if set(signs) & {"<", ">", "\\le", "\\ge", "\\ne"}:
            return self._inequality(parts, signs)
        name = name_of(parts[0])
        rounded = signs[0] == "\\approx" and (not parts[0] or name is not None)
        if not parts[0] or name is not None:
            parts, signs = parts[1:], signs[1:]
        elif len(parts) == 2 and signs == ["="] and (name := name_of(parts[1])) is not None:
            parts, signs = parts[:1], []  # 5 = x
        if not all(parts):
            raise Unreadable("one side of a relation is empty")
        if name is None and len(parts) == 2 and signs == ["="]:
            left, right = self._sets(parts[0]), self._sets(parts[1])
            sides = [one.value for one in (left, right) if isinstance(one, Quantity) and one.unit is None]
            if len(sides) == 2 and any(map(variables, sides)):
                return Equation(*sides)
        value = self._chain(parts, signs)
        if rounded and isinstance(value, Quantity):
            value = Quantity(value.value, value.unit, rounded=True)
        if name is None:
            return value
        if isinstance(value, Quantity) and len(name) == 1 and name in variables(value.value):
            return Equation(Var(name), value.value)
        return Named(name, value)

    def _chain(self, parts: Sequence[Run], signs: Sequence[str]) -> Answer:
        """The value of `a = b ≈ c`: all are the same, or rounded."""
        values = [self._sets(one) for one in parts]
        last = len(parts) - 1
        exact_ones = next((n for n, sign in enumerate(signs) if sign == "\\approx"), last)
        for place in range(1, len(values)):
            one, other = values[0], values[place]
            if not isinstance(one, Quantity | Percent) or not isinstance(other, Quantity | Percent):
                raise Unreadable("a chain of values that are not numbers")
            a, b = _in_one_unit(one, other)
            agree = same_number(a, b) if place <= exact_ones else is_close(a, b)
            if not agree:
                raise Unreadable("a chain of values that are not the same")
        return values[exact_ones]

    def _inequality(self, parts: Sequence[Run], signs: Sequence[str]) -> Reals:
        named = [name_of(one) if len(one) > 1 else None for one in parts]
        nodes = [whole(one) if name is None else Var(name) for one, name in zip(parts, named, strict=True)]
        places = [n for n, one in enumerate(nodes) if isinstance(one, Var)]
        if len(places) != 1 or len(nodes) > 3 or any(variables(n) for n in nodes if not isinstance(n, Var)):
            raise Unreadable("an inequality that is not solved for a variable")
        (place,) = places
        name = nodes[place]
        assert isinstance(name, Var)
        if "\\ne" in signs:
            if len(nodes) != 2:
                raise Unreadable("two relations, one of them `not equal`")
            return Reals(complement(Quantity(nodes[1 - place])).spans, name.name)
        if len(nodes) == 3 and place != 1:
            raise Unreadable("an inequality whose variable is not in the middle")
        spans = []
        for number, sign in enumerate(signs):
            if sign in ("=", "\\approx"):
                raise Unreadable("an equation within an inequality")
            closed, less = sign in ("\\le", "\\ge"), sign in ("<", "\\le")
            bound = nodes[number] if number + 1 == place else nodes[number + 1]
            above = less == (number + 1 == place)  # bound < x, or x > bound
            span = Span(bound, closed, INFINITY, False) if above else Span(MINUS_INFINITY, False, bound, closed)
            spans.append(Reals((span,), name.name))
        if len(spans) == 2 and (signs[0] in ("<", "\\le")) != (signs[1] in ("<", "\\le")):
            raise Unreadable("inequalities in two directions")
        return intersection(spans)

    def _compound(self, found: Run) -> Answer | None:
        """`2 hours and 30 minutes`, `5 ft 3 in`: parts of one quantity, from the largest unit down."""
        plain = [one for one in found if one.text not in ("and", ",")]
        if not self._units or len(plain) not in (4, 6) or any(one.kind != "number" for one in plain[::2]):
            return None
        if any(one.kind != "word" for one in plain[1::2]) or len(found) - len(plain) > 2:
            return None
        try:
            units = [unit_of([one])[1] for one in plain[1::2]]
        except Unreadable:
            return None
        known = [one for one in units if one is not None and one.dimensions and one.dimensions[0][0] in _COMPOUND]
        factors = [exact(one.factor) for one in known]
        sizes = [one for one in factors if one is not None]
        if len(sizes) != len(units) or len({one.dimensions for one in known}) != 1 or sizes != sorted(set(sizes))[::-1]:
            return None
        values = [one.value for one in plain[::2] if one.value is not None]
        total = sum((value * size for value, size in zip(values, sizes, strict=True)), Fraction(0)) / sizes[0]
        return Quantity(Num(total), known[0])

    def quantity(self, found: Run) -> Answer:
        """A value with a unit, a percent sign, a currency, or nothing."""
        sign = found[0].text == "-" and len(found) > 1
        rest = found[1:] if sign else found
        money: Unit | None = None
        if (rest[0].text in CURRENCIES and rest[0].text != "¢") or rest[0].text in ("USD", "EUR", "GBP", "Rs", "US"):
            money = table()["$" if rest[0].text == "US" else rest[0].text.lower().replace("$", "$")]
            rest = rest[2:] if rest[0].text == "US" and len(rest) > 1 and rest[1].text == "$" else rest[1:]
            if not rest or rest[0].text == "-" or rest[0].kind != "number":
                raise Unreadable("a currency without a number")
            per = next((n for n, one in enumerate(rest) if one.text == "/" and rest[-1].kind == "word"), len(rest))
            value, unit = self._with_unit(rest[:per])
            if per < len(rest) and unit is None:
                unit = unit_of([Token("word", "per", gap=True), *rest[per + 1 :]])[1]
            value = negative(value) if sign else value
            if unit is not None and unit.dimensions and any(n not in ("T", "M", "L") for n, _ in unit.dimensions):
                if unit != money:
                    raise Unreadable("two units of money")
                unit = None
            if unit is None:
                return Quantity(value, money)
            dimensions = tuple(sorted((*unit.dimensions, *money.dimensions)))
            return Quantity(value, Unit(dimensions, Call("mul", (unit.factor, money.factor))))
        value, unit = self._with_unit(found)
        if unit is PERCENT:
            return Percent(value)
        return _plus_minus(value, unit)

    def _with_unit(self, found: Run) -> tuple[Node, Unit | None]:
        parser = Parser(found, units=self._units)
        value = parser.expression()
        if parser.next is None:
            return value, None
        if not self._units:
            raise Unreadable(f"'{parser.next.text}' after an expression")
        scale, unit = unit_of(found[parser.place :])
        if scale > 1:
            value = Num(value.value * scale) if isinstance(value, Num) else Call("mul", (value, Num(Fraction(scale))))
        if variables(value):
            raise Unreadable("a unit after a variable")
        return value, unit


def _in_one_unit(one: Quantity | Percent, other: Quantity | Percent) -> tuple[Node, Node]:
    """The values of two sides of an equation, in base units if both have units."""
    values = [v.value if isinstance(v, Quantity) else Call("div", (v.value, Num(Fraction(100)))) for v in (one, other)]
    units = [v.unit if isinstance(v, Quantity) else None for v in (one, other)]
    if units[0] is not None and units[1] is not None and units[0] != units[1]:
        if units[0].dimensions != units[1].dimensions:
            raise Unreadable("an equation of different units")
        values = [Call("mul", (unit.factor, value)) for unit, value in zip(units, values, strict=True) if unit]
    return values[0], values[1]


def _plus_minus(value: Node, unit: Unit | None) -> Answer:
    """Both values where the expression has a plus-minus sign."""
    count = sum(isinstance(one, Call) and one.name == "pm" for one in walk(value))
    if not count:
        return Quantity(value, unit)
    if count > 1:
        raise Unreadable("two plus-minus signs")
    return _items([Quantity(_chosen(value, sign), unit) for sign in ("add", "sub")])


def _chosen(node: Node, sign: str) -> Node:
    if not isinstance(node, Call):
        return node
    args = tuple(_chosen(one, sign) for one in node.args)
    if node.name != "pm":
        return Call(node.name, args)
    right = args[1] if sign == "add" else negative(args[1])
    total = exact(Call("add", (args[0], right)))
    if total is not None:
        return Num(total)
    return right if args[0] == Num(Fraction(0)) else Call("add", (args[0], right))


def _values_of(one: Answer) -> Reals:
    """The numbers of an inequality or of `x = 0`."""
    if isinstance(one, Named):
        members = one.value if isinstance(one.value, Items) else Items("set", (one.value,))
        return Reals(reals_of(members).spans, one.name)
    return reals_of(one)


def _listed(parts: Sequence[Run], read: Sequence[Answer]) -> Answer:
    """Answers that are listed: sets in a list stay sets."""
    fenced = [bool(one) and one[0].text in ("\\{", "{") and encloses(one) for one in parts]
    if any(isinstance(one, Items) and one.kind == "set" and inside for one, inside in zip(read, fenced, strict=True)):
        if not all(fenced):
            raise Unreadable("a list of sets and other values")
        return Items("set", tuple(read))
    return _items(read)


def _items(read: Sequence[Answer]) -> Answer:
    """Answers without order; names that are all the same are written once."""
    flat: list[Answer] = []
    name: str | None = None
    for one in read:
        if isinstance(one, Named) and isinstance(one.value, Items) and one.value.kind == "set":
            flat.extend(Named(one.name, member) for member in one.value.members)
        elif isinstance(one, Items) and one.kind == "set":
            flat.extend(one.members)
        else:
            flat.append(one)
    if len(flat) > MOST_MEMBERS:
        raise Unreadable(f"more than {MOST_MEMBERS} members")
    flat = [Named(re.sub(r"_\d+\Z", "", one.name), one.value) if isinstance(one, Named) else one for one in flat]
    names = {one.name for one in flat if isinstance(one, Named)}
    if len(names) == 1 and isinstance(flat[0], Named):  # x = 1 or 2
        name = flat[0].name
        return Named(name, Items("set", tuple(one.value if isinstance(one, Named) else one for one in flat)))
    if names and not all(isinstance(one, Named) for one in flat):
        raise Unreadable("a list in which some values have names")
    return Items("set", tuple(flat))
