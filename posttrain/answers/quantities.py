"""Reads one value with a unit, a percent sign or a currency, and a list of values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction

from posttrain.answers.expression import Parser, negative
from posttrain.answers.nodes import (
    Answer,
    Call,
    Items,
    Named,
    Node,
    Num,
    Percent,
    Quantity,
    Unit,
    Unreadable,
    variables,
    walk,
)
from posttrain.answers.numbers import exact
from posttrain.answers.token_runs import MOST_MEMBERS, Run
from posttrain.answers.tokens import CURRENCIES, Token
from posttrain.answers.units import PERCENT, table, unit_of

_COMPOUND = ("L", "T", "M", "$", "angle")


def compound(found: Run) -> Answer | None:
    """`2 hours and 30 minutes`, `5 ft 3 in`: parts of one quantity, from the largest unit down."""
    plain = [one for one in found if one.text not in ("and", ",")]
    if len(plain) not in (4, 6) or any(one.kind != "number" for one in plain[::2]):
        return None
    if any(one.kind != "word" for one in plain[1::2]) or len(found) - len(plain) > 2:
        return None
    try:
        units = [unit_of([one])[1] for one in plain[1::2]]
    except Unreadable:
        return None
    known = [one for one in units if one is not None and one.dimensions and one.dimensions[0][0] in _COMPOUND]
    factors = [exact(one.factor) for one in known]
    sizes = [factor for factor in factors if factor is not None]
    if len(sizes) != len(units) or len({one.dimensions for one in known}) != 1 or sizes != sorted(set(sizes))[::-1]:
        return None
    values = [one.value for one in plain[::2] if one.value is not None]
    total = sum((value * size for value, size in zip(values, sizes, strict=True)), Fraction(0)) / sizes[0]
    return Quantity(Num(total), known[0])


def quantity(found: Run, *, units: bool) -> Answer:
    """Return a value with a unit, a percent sign, a currency, or nothing."""
    sign = found[0].text == "-" and len(found) > 1
    rest = found[1:] if sign else found
    money: Unit | None = None
    if (rest[0].text in CURRENCIES and rest[0].text != "¢") or rest[0].text in ("USD", "EUR", "GBP", "Rs", "US"):
        money = table()["$" if rest[0].text == "US" else rest[0].text.lower().replace("$", "$")]
        rest = rest[2:] if rest[0].text == "US" and len(rest) > 1 and rest[1].text == "$" else rest[1:]
        if not rest or rest[0].text == "-" or rest[0].kind != "number":
            raise Unreadable("a currency without a number")
        per = next((n for n, one in enumerate(rest) if one.text == "/" and rest[-1].kind == "word"), len(rest))
        value, unit = _with_unit(rest[:per], units=units)
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
    value, unit = _with_unit(found, units=units)
    if unit is PERCENT:
        return Percent(value)
    return _plus_minus(value, unit)


def _with_unit(found: Run, *, units: bool) -> tuple[Node, Unit | None]:
    parser = Parser(found, units=units)
    value = parser.expression()
    if parser.next is None:
        return value, None
    if not units:
        raise Unreadable(f"'{parser.next.text}' after an expression")
    scale, unit = unit_of(found[parser.place :])
    if scale > 1:
        value = Num(value.value * scale) if isinstance(value, Num) else Call("mul", (value, Num(Fraction(scale))))
    if variables(value):
        raise Unreadable("a unit after a variable")
    return value, unit


def _plus_minus(value: Node, unit: Unit | None) -> Answer:
    """Return both values where the expression has a plus-minus sign."""
    count = sum(isinstance(one, Call) and one.name == "pm" for one in walk(value))
    if not count:
        return Quantity(value, unit)
    if count > 1:
        raise Unreadable("two plus-minus signs")
    return items([Quantity(_chosen(value, sign), unit) for sign in ("add", "sub")])


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


def items(read: Sequence[Answer]) -> Answer:
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
