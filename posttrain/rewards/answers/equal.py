"""Whether a completion's answer is the gold answer; when it is not sure, it says unreadable."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from posttrain.rewards.answers.numbers import exact, same_number
from posttrain.rewards.answers.read import read
from posttrain.rewards.answers.spans import reals_of, same_reals
from posttrain.rewards.answers.tree import (
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

ARITHMETIC = frozenset({"add", "sub", "mul"})
HUNDRED = Num(Fraction(100))


def same_answer(gold: str, found: str) -> bool:
    """Whether the final answer `found` is the gold answer; Unreadable: it cannot be told."""
    readings: list[bool] = []
    reasons: list[Unreadable] = []
    for units in (True, False):
        try:
            expected = read(gold, units=units)
        except Unreadable:
            continue
        try:
            readings.append(same(expected, read(found, units=units)))
        except Unreadable as reason:
            reasons.append(reason)
    if any(readings):
        return True
    if reasons:
        raise reasons[0]
    return False


def why_unreadable(gold: str) -> str | None:
    """Why a gold answer cannot be read; None: it can."""
    try:
        read(gold)
    except Unreadable:
        try:
            read(gold, units=False)
        except Unreadable as reason:
            return str(reason)
    return None


def same(gold: Answer, found: Answer) -> bool:
    """Whether two answers are the same, kind by kind."""
    if isinstance(gold, Equation) or isinstance(found, Equation):
        return _same_equation(gold, found)
    if isinstance(gold, Named) or isinstance(found, Named):
        return _same_named(gold, found)
    if isinstance(gold, Reals) or isinstance(found, Reals):
        return _same_intervals(gold, found)
    if isinstance(gold, Items) or isinstance(found, Items):
        return _same_items(gold, found)
    if isinstance(gold, Matrix) and isinstance(found, Matrix):
        return [len(row) for row in gold.rows] == [len(row) for row in found.rows] and all(
            same_number(a, b) for one, other in zip(gold.rows, found.rows, strict=True)
            for a, b in zip(one, other, strict=True)
        )  # fmt: skip
    if isinstance(gold, Percent | Quantity) and isinstance(found, Percent | Quantity):
        return _same_quantity(gold, found)
    return isinstance(gold, Words | Based) and gold == found


def _same_quantity(gold: Percent | Quantity, found: Percent | Quantity) -> bool:
    if isinstance(gold, Percent):
        if isinstance(found, Percent):
            return same_value(gold.value, found.value)
        if found.unit is not None:
            return False
        return same_value(gold.value, found.value) or same_value(Call("div", (gold.value, HUNDRED)), found.value)
    if isinstance(found, Percent):
        return gold.unit is None and same_value(gold.value, Call("div", (found.value, HUNDRED)))
    if gold.unit is None or found.unit is None:
        return same_value(gold.value, found.value)
    if gold.unit.dimensions != found.unit.dimensions:
        return False
    equal = same_number(_in_base_units(gold.value, gold.unit), _in_base_units(found.value, found.unit))
    return equal and _is_worked_out(gold.value, found.value)


def _in_base_units(value: Node, unit: Unit) -> Node:
    return value if unit.factor == Num(Fraction(1)) else Call("mul", (unit.factor, value))


def same_value(gold: Node, found: Node) -> bool:
    """Whether two expressions are equal, and the found one is no arithmetic that is left to do."""
    infinite = Const("infinity")
    if any(one == infinite for node in (gold, found) for one in walk(node)):
        return gold == found
    return same_number(gold, found) and _is_worked_out(gold, found)


def _is_worked_out(gold: Node, found: Node) -> bool:
    """Refuse sums and products of numbers where the gold answer is a number: 9 + 9 may be the question."""
    if exact(gold) is not None and not _has_arithmetic(gold) and _has_arithmetic(found):
        raise Unreadable("arithmetic that is left to do")
    return True


def _has_arithmetic(node: Node) -> bool:
    """Whether rational numbers are still to be added or multiplied; 1.5 * 10^3 is a number."""
    for one in walk(node):
        if not isinstance(one, Call) or one.name not in ARITHMETIC:
            continue
        left, right = one.args
        scientific = isinstance(right, Call) and right.name == "pow" and right.args[0] == Num(Fraction(10))
        if one.name == "mul" and scientific and isinstance(left, Num):
            continue
        if exact(left) is not None and exact(right) is not None:
            return True
    return False


def _same_equation(gold: Answer, found: Answer) -> bool:
    """Whether two equations have the same solutions: their differences of sides are in a constant ratio."""
    a, b = _sides(gold), _sides(found)
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
    """Whether an expression does not depend on its variables: it is the same after they are renamed."""
    renamed = _renamed(ratio, {name: f"{name}'" for name in names})
    product = Call("add", (ratio, Call("mul", (Num(Fraction(0)), renamed))))
    other = Call("add", (renamed, Call("mul", (Num(Fraction(0)), ratio))))
    return same_number(product, other)


def _renamed(node: Node, names: dict[str, str]) -> Node:
    if isinstance(node, Var):
        return Var(names[node.name])
    if isinstance(node, Call):
        return Call(node.name, tuple(_renamed(one, names) for one in node.args))
    return node


def _sides(answer: Answer) -> Node | None:
    """left - right of an equation, or of `y = 2x + 3`."""
    if isinstance(answer, Equation):
        return Call("add", (answer.left, Call("neg", (answer.right,))))
    if not isinstance(answer, Named) or not isinstance(answer.value, Quantity) or answer.value.unit is not None:
        return None
    name = answer.name
    return Call("add", (Var(name), Call("neg", (answer.value.value,)))) if len(name.split("_")[0]) == 1 else None


def _same_named(gold: Answer, found: Answer) -> bool:
    if isinstance(gold, Named) and isinstance(found, Named):
        if gold.name == found.name or _is_words(found.name) or _is_words(gold.name):
            return same(gold.value, found.value)
        return _variables_of(gold.value) and _same_equation(gold, found)
    if isinstance(gold, Named):
        return same(gold.value, found)
    return isinstance(found, Named) and same(gold, found.value)


def _variables_of(answer: Answer) -> bool:
    return isinstance(answer, Quantity) and bool(variables(answer.value))


def _is_words(name: str) -> bool:
    return name.replace(" ", "").isalpha() and len(name) > 3


def _same_intervals(gold: Answer, found: Answer) -> bool:
    kinds = (Reals, Items)
    if not isinstance(gold, kinds) or not isinstance(found, kinds):
        return False
    if (isinstance(gold, Items) and gold.kind not in ("(", "set")) or (isinstance(found, Items) and found.kind == ":"):
        return False
    if (isinstance(gold, Items) and len(gold.members) == 0) or (isinstance(found, Items) and len(found.members) == 0):
        return False
    try:
        return same_reals(reals_of(gold), reals_of(found))
    except Unreadable:
        if isinstance(gold, Reals) and isinstance(found, Reals):
            raise
        return False


def _same_items(gold: Answer, found: Answer) -> bool:
    """Sets without order, tuples in order; a set of one is that one."""
    one, other = (_members(answer) for answer in (gold, found))
    if one[0] != other[0]:
        return _assigned(gold, found)
    if one[0] == "set":
        return _same_sets(one[1], other[1])
    return len(one[1]) == len(other[1]) and all(map(same, one[1], other[1]))


def _members(answer: Answer) -> tuple[str, Sequence[Answer]]:
    return (answer.kind, answer.members) if isinstance(answer, Items) else ("set", (answer,))


def _same_sets(gold: Sequence[Answer], found: Sequence[Answer]) -> bool:
    """Whether each member is in the other set; several spellings of one answer must be the same among themselves."""
    if len(gold) == 1 and not all(same(found[0], one) for one in found[1:]):
        return False
    return all(any(same(one, other) for other in found) for one in gold) and all(
        any(same(one, other) for one in gold) for other in found
    )


def _assigned(gold: Answer, found: Answer) -> bool:
    """Whether `x = 1, y = 2` and the point (1, 2) are the same."""
    for point, values in ((gold, found), (found, gold)):
        if isinstance(point, Items) and point.kind == "(" and isinstance(values, Items) and values.kind == "set":
            named = [one for one in values.members if isinstance(one, Named)]
            names = [one.name for one in named]
            if len(named) == len(values.members) == len(point.members) and names in (["x", "y"], ["x", "y", "z"]):
                return all(same(a, b.value) for a, b in zip(point.members, named, strict=True))
    return False
