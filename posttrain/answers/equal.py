"""Decide whether a completion's answer equals the gold answer. Raise Unreadable if this is uncertain."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Literal

from posttrain.answers.intervals import reals_of, same_reals
from posttrain.answers.nodes import (
    INFINITY,
    MINUS_INFINITY,
    WHOLE_LINE,
    Answer,
    Based,
    Call,
    Const,
    Equation,
    Items,
    Matrix,
    Named,
    Node,
    Num,
    Percent,
    Quantity,
    Reals,
    Unit,
    Unreadable,
    Var,
    Words,
    variables,
    walk,
)
from posttrain.answers.numbers import exact, is_close, same_number
from posttrain.answers.read import MODULUS, read
from posttrain.answers.units import table

Pairs = Literal["unsure", "points", "intervals"]
_TWICE = re.compile(
    r"(?P<one>.+?)(?:,?\s*\(?(?:i\.?e\.?,?|that is,|or equivalently,?|equivalently,?|which (?:equals|"
    r"is (?:about|approximately|roughly)))\s+(?P<two>[^()]*|.*)\)?"
    r"|\s*\((?:=|approximately|about|≈|\\approx)?\s*(?P<three>[^()]+)\))",
    re.DOTALL,
)
HUNDRED = Num(Fraction(100))


def same_answer(gold: str, said: str, pairs: Pairs = "unsure") -> bool:
    """Tell whether the final answer `said` equals the gold answer. Raise Unreadable if this cannot be decided."""
    moduli = {modulus[1].strip("{}") for text in (gold, said) if (modulus := MODULUS.search(text[-40:]))}
    if len(moduli) > 1:
        return False
    reasons: list[Unreadable] = []
    for units in (True, False):
        try:
            expected = read(gold, units=units)
        except Unreadable:
            continue
        try:
            if _agrees(expected, read(said, units=units), pairs):
                return True
        except Unreadable as reason:
            reasons.append(reason)
        if units and _both_spellings(expected, said, pairs):
            return True
    if reasons:
        raise reasons[0]
    return False


def _both_spellings(gold: Answer, said: str, pairs: Pairs) -> bool:
    """Tell whether both spellings of an answer, e.g. `3 m (300 cm)`, are right, or exact and then rounded."""
    twice = _TWICE.fullmatch(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", said).strip(" .$"))
    if not twice:
        return False
    try:
        first, second = read(twice["one"]), read(twice["two"] or twice["three"])
        if not _agrees(gold, first, pairs):
            return False
        first = first.value if isinstance(first, Named) else first
        rounded = isinstance(first, Quantity) and isinstance(second, Quantity) and is_close(first.value, second.value)
        return rounded or _agrees(gold, second, pairs)
    except Unreadable:
        return False


def _agrees(gold: Answer, said: Answer, pairs: Pairs) -> bool:
    """Tell whether two whole answers are equal. A set of one is its member; (1, 2) may be an interval."""
    gold, said = _single(gold), _single(said)
    if (times := _times(gold, said)) is not None:
        return times
    if isinstance(gold, Named) != isinstance(said, Named) and not isinstance(gold, Equation):
        gold = gold.value if isinstance(gold, Named) and not isinstance(said, Equation) else gold  # x = 5 and 5
        said = said.value if isinstance(said, Named) else said
    if not isinstance(gold, Matrix) or not isinstance(said, Matrix):
        gold, said = _point(gold), _point(said)
    if isinstance(gold, Items) and gold.kind == "(" and len(gold.members) == 2:
        assigned = pairs != "intervals" and isinstance(said, Items) and said.kind == "set"
        if any(_is_infinite(member) for member in gold.members) or pairs == "intervals":
            gold = reals_of(gold)
        elif assigned and isinstance(said, Items):
            return _assigned(gold, said)
        elif pairs == "unsure" and isinstance(said, Reals):
            gold = reals_of(gold)
    if isinstance(gold, Items) and gold.kind == "(" and len(gold.members) > 2 and isinstance(said, Items):
        return _assigned(gold, said) or same(gold, said)
    if isinstance(gold, Items) and gold.kind == "set" and isinstance(said, Items) and said.kind == "(":
        return _assigned(said, gold)
    if isinstance(said, Items) and said.kind == "set" and not isinstance(gold, Items | Named):
        return bool(said.members) and all(
            same(gold, member) and same(said.members[0], member) for member in said.members
        )
    return same(gold, said)


def _times(gold: Answer, said: Answer) -> bool | None:
    """Tell whether two times of day, one with AM or PM, are equal; None if they are not times."""
    if (
        not isinstance(gold, Words | Items)
        or not isinstance(said, Words | Items)
        or isinstance(gold, Words) is isinstance(said, Words)
    ):
        return None
    clock, ratio = (gold, said) if isinstance(gold, Words) else (said, gold)
    values = (
        [member.value for member in ratio.members if isinstance(member, Quantity)] if isinstance(ratio, Items) else []
    )
    digits = re.fullmatch(r"(\d+):(\d\d)", clock.text) if isinstance(clock, Words) else None
    if digits is None or len(values) != 2:
        return None
    hour, minute = (Fraction(digit) for digit in digits.groups())
    return values[1] == Num(minute) and (values[0] == Num(hour) or values[0] == Num((hour - 1) % 12 + 1))


def _point(answer: Answer) -> Answer:
    """Return a vector, in angle brackets or as a row or column, as a point."""
    if isinstance(answer, Matrix) and 1 in (len(answer.rows), max(map(len, answer.rows))):
        return Items("(", tuple(Quantity(value) for row in answer.rows for value in row))
    return Items("(", answer.members) if isinstance(answer, Items) and answer.kind == "<" else answer


def _is_infinite(answer: Answer) -> bool:
    return isinstance(answer, Quantity) and answer.value in (INFINITY, MINUS_INFINITY)


def _single(answer: Answer) -> Answer:
    if isinstance(answer, Items) and answer.kind == "set" and len(answer.members) == 1:
        return answer if isinstance(answer.members[0], Items) else answer.members[0]
    if isinstance(answer, Named):
        return Named(answer.name, _single(answer.value))
    return answer


def why_unreadable(gold: str) -> str | None:
    """Return the reason why a gold answer cannot be read; None if it can."""
    try:
        read(gold)
    except Unreadable:
        try:
            read(gold, units=False)
        except Unreadable as reason:
            return str(reason)
    return None


def same(gold: Answer, said: Answer) -> bool:
    """Tell whether two answers are equal, by their kinds."""
    if isinstance(gold, Equation) or isinstance(said, Equation):
        return _same_equation(gold, said)
    if isinstance(gold, Named) and isinstance(said, Named):
        return _same_named(gold, said)
    if isinstance(gold, Reals) or isinstance(said, Reals):
        return _same_intervals(gold, said)
    if isinstance(gold, Items) and gold.kind == ":" and isinstance(said, Quantity) and len(gold.members) == 2:
        top, bottom = (member.value for member in gold.members if isinstance(member, Quantity))
        return said.unit is None and Call("div", (top, bottom)) == said.value
    if isinstance(gold, Items) or isinstance(said, Items):
        return _same_items(gold, said)
    if isinstance(gold, Matrix) and isinstance(said, Matrix):
        return [len(row) for row in gold.rows] == [len(row) for row in said.rows] and all(
            same_number(a, b) for gold_row, found_row in zip(gold.rows, said.rows, strict=True)
            for a, b in zip(gold_row, found_row, strict=True)
        )  # fmt: skip
    if isinstance(gold, Percent | Quantity) and isinstance(said, Percent | Quantity):
        return _same_quantity(gold, said)
    if isinstance(gold, Based) != isinstance(said, Based) and 10 in (_base(gold), _base(said)):
        return same(_decimal(gold), _decimal(said))
    if isinstance(gold, Based) and said == Quantity(Num(Fraction(gold.digits if gold.digits.isdigit() else -1))):
        return True  # the prompt names the base
    return isinstance(gold, Words | Based) and gold == said


def _base(answer: Answer) -> int:
    return answer.base if isinstance(answer, Based) else 0


def _decimal(answer: Answer) -> Answer:
    """Digits with the index 10 as a number."""
    is_ten = isinstance(answer, Based) and answer.base == 10 and answer.digits.isdigit()
    return Quantity(Num(Fraction(answer.digits))) if is_ten and isinstance(answer, Based) else answer


def _same_quantity(gold: Percent | Quantity, said: Percent | Quantity) -> bool:
    if isinstance(said, Quantity) and said.rounded and not _is_decimal(gold.value):
        raise Unreadable("only approximately")
    if isinstance(gold, Percent):
        if isinstance(said, Percent):
            return same_value(gold.value, said.value)
        if said.unit is not None:
            return False
        return same_value(gold.value, said.value) or same_value(Call("div", (gold.value, HUNDRED)), said.value)
    if isinstance(said, Percent):
        return gold.unit is None and same_value(gold.value, Call("div", (said.value, HUNDRED)))
    if gold.unit is None or said.unit is None:
        if any(side.unit == table()["degree"] for side in (gold, said)) and Const("pi") in [
            *walk(gold.value),
            *walk(said.value),
        ]:
            return False  # an angle in radians
        return same_value(gold.value, said.value)
    if gold.unit.dimensions != said.unit.dimensions:
        kelvins = _kelvins(gold), _kelvins(said)
        return kelvins[0] is not None and kelvins[1] is not None and same_number(kelvins[0], kelvins[1])
    return same_number(_in_base_units(gold.value, gold.unit), _in_base_units(said.value, said.unit))


def _is_decimal(node: Node) -> bool:
    return isinstance(node, Num) and node.value.denominator != 1


def _kelvins(answer: Quantity) -> Node | None:
    """Return a temperature in kelvins; None for anything else."""
    assert answer.unit is not None
    scales = {
        "K": (Fraction(0), Fraction(1)),
        "W:celsius": (Fraction("273.15"), Fraction(1)),
        "W:fahrenheit": (Fraction("459.67"), Fraction(5, 9)),
    }
    if len(answer.unit.dimensions) != 1 or answer.unit.dimensions[0][0] not in scales:
        return None
    offset, size = scales[answer.unit.dimensions[0][0]]
    return Call("mul", (Call("add", (answer.value, Num(offset))), Num(size)))


def _in_base_units(value: Node, unit: Unit) -> Node:
    return value if unit.factor == Num(Fraction(1)) else Call("mul", (unit.factor, value))


def same_value(gold: Node, said: Node) -> bool:
    """Tell whether two expressions are equal."""
    infinite = Const("infinity")
    if any(part == infinite for node in (gold, said) for part in walk(node)):
        return gold == said
    return same_number(gold, said)


def is_scientific(part: Call) -> bool:
    """Tell whether an expression has the form 10^3 or 1.5 * 10^3."""
    left, right = part.args if len(part.args) == 2 else (part, part)
    if part.name == "mul" and isinstance(left, Num) and isinstance(right, Call):
        return is_scientific(right)
    return part.name == "pow" and left == Num(Fraction(10))


def _same_equation(gold: Answer, said: Answer) -> bool:
    """Tell whether two equations have the same solutions: the differences of their sides have a constant ratio."""
    a, b = _sides(gold), _sides(said)
    if a is None or b is None:
        return False
    names = variables(a)
    if not names or names != variables(b):
        return False
    ratio = Call("div", (a, b))
    if not same_number(a, a) or exact(b) == 0:
        return False
    return _is_constant(ratio, names)


def _is_constant(ratio: Node, names: frozenset[str]) -> bool:
    """Tell whether an expression does not depend on its variables, i.e. keeps its value when they are renamed."""
    renamed = _renamed(ratio, {name: f"{name}'" for name in names})
    product = Call("add", (ratio, Call("mul", (Num(Fraction(0)), renamed))))
    other = Call("add", (renamed, Call("mul", (Num(Fraction(0)), ratio))))
    return same_number(product, other)


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if isinstance(node, Var):
        return Var(names[node.name])
    if isinstance(node, Call):
        return Call(node.name, tuple(_renamed(arg, names) for arg in node.args))
    return node


def _sides(answer: Answer) -> Node | None:
    """Return left - right of an equation, or of `y = 2x + 3`."""
    if isinstance(answer, Equation):
        return Call("add", (answer.left, Call("neg", (answer.right,))))
    if not isinstance(answer, Named) or not isinstance(answer.value, Quantity) or answer.value.unit is not None:
        return None
    name = answer.name
    return Call("add", (Var(name), Call("neg", (answer.value.value,)))) if len(name.split("_")[0]) == 1 else None


def _same_named(gold: Named, said: Named) -> bool:
    function = {gold.name[-1], said.name[-1]} == {")", "y"}  # f(x) = 2x, and y = 2x
    if gold.name == said.name or function or _is_words(said.name) or _is_words(gold.name):
        return same(gold.value, said.value)
    return _variables_of(gold.value) and _same_equation(gold, said)


def _variables_of(answer: Answer) -> bool:
    return isinstance(answer, Quantity) and bool(variables(answer.value))


def _is_words(name: str) -> bool:
    return name.replace(" ", "").isalpha() and len(name) > 3


def _same_intervals(gold: Answer, said: Answer) -> bool:
    if gold == WHOLE_LINE and said == Quantity(Var("R")):
        return True
    kinds = (Reals, Items)
    if not isinstance(gold, kinds) or not isinstance(said, kinds):
        return False
    if (isinstance(gold, Items) and gold.kind != "set") or (isinstance(said, Items) and said.kind == ":"):
        return False
    if (isinstance(gold, Items) and len(gold.members) == 0) or (isinstance(said, Items) and len(said.members) == 0):
        return False
    try:
        return same_reals(reals_of(gold), reals_of(said))
    except Unreadable:
        if isinstance(gold, Reals) and isinstance(said, Reals):
            raise
        return False


def _same_items(gold: Answer, said: Answer) -> bool:
    """Tell whether the items are equal: sets in any order, tuples in order."""
    if not isinstance(gold, Items) or not isinstance(said, Items) or gold.kind != said.kind:
        return False
    if gold.kind != "set":
        return len(gold.members) == len(said.members) and all(map(same, gold.members, said.members))
    return all(any(same(member, other) for other in said.members) for member in gold.members) and all(
        any(same(member, other) for member in gold.members) for other in said.members
    )


def _assigned(point: Items, values: Items) -> bool:
    """Tell whether the point (1, 2) and `x = 1, y = 2` are equal."""
    named = {member.name: member.value for member in values.members if isinstance(member, Named)}
    names = sorted(named)
    if not names or max(map(len, names)) > 1 or not len(names) == len(values.members) == len(point.members):
        return False
    return all(same(a, named[name]) for a, name in zip(point.members, names, strict=True))
