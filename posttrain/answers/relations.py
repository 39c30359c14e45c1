"""Read equations, chains of equations, and inequalities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction

from posttrain.answers.intervals import complement, intersection
from posttrain.answers.nodes import (
    INFINITY,
    MINUS_INFINITY,
    Answer,
    Call,
    Equation,
    Named,
    Node,
    Num,
    Percent,
    Quantity,
    Reals,
    Span,
    Unreadable,
    Var,
    variables,
)
from posttrain.answers.numbers import is_close, same_number
from posttrain.answers.token_runs import Run, name_of, split, top, whole

Sets = Callable[[Run], Answer]
"""Reads one side of a relation."""
RELATIONS = frozenset({"=", "<", ">", "\\le", "\\ge", "\\ne", "\\approx"})


def relation(run: Run, sets: Sets) -> Answer:
    """Return `x = 5`, `9 + 9 = 18`, `1/3 ≈ 0.333`, `1 < x < 5` or `y = 2x + 3` as an answer."""
    signs = [token.text for token in top(run) if token.text in RELATIONS]
    parts = split(run, *RELATIONS)
    if len(parts) > 12:
        raise Unreadable("too many relations")
    if set(signs) & {"<", ">", "\\le", "\\ge", "\\ne"}:
        return _inequality(parts, signs)
    name = name_of(parts[0])
    if name is None and run[0].kind == "command":
        name = _function_name(parts[0])
    rounded = signs[0] == "\\approx" and (not parts[0] or name is not None)
    if not parts[0] or name is not None:
        parts, signs = parts[1:], signs[1:]
    elif len(parts) == 2 and signs == ["="] and (name := name_of(parts[1])) is not None:
        parts, signs = parts[:1], []  # 5 = x
    if not all(parts):
        raise Unreadable("one side of a relation is empty")
    if name is None and len(parts) == 2 and signs == ["="]:
        left, right = sets(parts[0]), sets(parts[1])
        sides = [side.value for side in (left, right) if isinstance(side, Quantity) and side.unit is None]
        if len(sides) == 2 and any(map(variables, sides)):
            return Quantity(sides[1]) if _is_identity(*sides) else Equation(*sides)
    value = _chain(parts, signs, sets)
    if rounded and isinstance(value, Quantity):
        value = Quantity(value.value, value.unit, rounded=True)
    if name is None:
        return value
    if isinstance(value, Quantity) and len(name) == 1 and name in variables(value.value):
        return Equation(Var(name), value.value)
    return Named(name, value)


def _is_identity(left: Node, right: Node) -> bool:
    """True if both sides are equal for all values of their variables: (x+1)^2 = x^2+2x+1."""
    try:
        return variables(left) == variables(right) and same_number(left, right)
    except Unreadable:
        return False


def _function_name(run: Run) -> str | None:
    r"""Return the text of unknown functions: \min, \gcd(48, 40); None for an expression."""
    try:
        whole(run)
    except Unreadable:
        return " ".join(token.text for token in run)
    return None


def _chain(parts: Sequence[Run], signs: Sequence[str], sets: Sets) -> Answer:
    """Return the value of `a = b ≈ c`, if all are equal or rounded."""
    values = [sets(part) for part in parts]
    last = len(parts) - 1
    exact_ones = next((n for n, sign in enumerate(signs) if sign == "\\approx"), last)
    for place in range(1, len(values)):
        first, other = values[0], values[place]
        if not isinstance(first, Quantity | Percent) or not isinstance(other, Quantity | Percent):
            raise Unreadable("a chain of values that are not numbers")
        a, b = _in_one_unit(first, other)
        agree = same_number(a, b) if place <= exact_ones else is_close(a, b)
        if not agree:
            raise Unreadable("a chain of values that are not the same")
    return values[exact_ones]


def _inequality(parts: Sequence[Run], signs: Sequence[str]) -> Reals:
    named = [name_of(part) if len(part) > 1 else None for part in parts]
    nodes = [whole(part) if name is None else Var(name) for part, name in zip(parts, named, strict=True)]
    places = [n for n, node in enumerate(nodes) if isinstance(node, Var)]
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


def _in_one_unit(left: Quantity | Percent, right: Quantity | Percent) -> tuple[Node, Node]:
    """Return the values of an equation's two sides, in base units if both have units."""
    values = [v.value if isinstance(v, Quantity) else Call("div", (v.value, Num(Fraction(100)))) for v in (left, right)]
    units = [v.unit if isinstance(v, Quantity) else None for v in (left, right)]
    if units[0] is not None and units[1] is not None and units[0] != units[1]:
        if units[0].dimensions != units[1].dimensions:
            raise Unreadable("an equation of different units")
        values = [Call("mul", (unit.factor, value)) for unit, value in zip(units, values, strict=True) if unit]
    return values[0], values[1]
