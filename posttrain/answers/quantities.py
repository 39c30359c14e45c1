"""Read one value with a unit, a percent sign or a currency, and lists of values."""

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


def compound(run: Run) -> Answer | None:
    """Return the sum of `2 hours and 30 minutes` or `5 ft 3 in`: parts of one quantity, largest unit first."""
    plain = [token for token in run if token.text not in ("and", ",")]
    if len(plain) not in (4, 6) or any(token.kind != "number" for token in plain[::2]):
        return None
    if any(token.kind != "word" for token in plain[1::2]) or len(run) - len(plain) > 2:
        return None
    try:
        units = [unit_of([token])[1] for token in plain[1::2]]
    except Unreadable:
        return None
    known_units = [
        unit for unit in units if unit is not None and unit.dimensions and unit.dimensions[0][0] in _COMPOUND
    ]
    factors = [exact(unit.factor) for unit in known_units]
    sizes = [factor for factor in factors if factor is not None]
    if (
        len(sizes) != len(units)
        or len({unit.dimensions for unit in known_units}) != 1
        or sizes != sorted(set(sizes))[::-1]
    ):
        return None
    values = [token.value for token in plain[::2] if token.value is not None]
    parts = zip(sizes, values[1:], sizes[1:], strict=False)
    if any(value * size >= larger for larger, value, size in parts) or not values[0]:
        raise Unreadable("a part in the smaller unit that exceeds the larger unit: 0 hours 90 minutes")
    total = sum((value * size for value, size in zip(values, sizes, strict=True)), Fraction(0)) / sizes[0]
    return Quantity(Num(total), known_units[0])


def quantity(run: Run, *, units: bool) -> Answer:
    """Return a value, optionally with a unit, a percent sign or a currency."""
    sign = run[0].text == "-" and len(run) > 1
    rest = run[1:] if sign else run
    money: Unit | None = None
    if (rest[0].text in CURRENCIES and rest[0].text != "¢") or rest[0].text in ("USD", "EUR", "GBP", "Rs", "US"):
        money = table()["$" if rest[0].text == "US" else rest[0].text.lower().replace("$", "$")]
        rest = rest[2:] if rest[0].text == "US" and len(rest) > 1 and rest[1].text == "$" else rest[1:]
        if not rest or rest[0].text == "-" or rest[0].kind != "number":
            raise Unreadable("a currency without a number")
        per = next((n for n, token in enumerate(rest) if token.text == "/" and rest[-1].kind == "word"), len(rest))
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
    value, unit = _with_unit(run, units=units)
    if unit is PERCENT:
        return Percent(value)
    return _plus_minus(value, unit)


def _with_unit(run: Run, *, units: bool) -> tuple[Node, Unit | None]:
    parser = Parser(run, units=units)
    value = parser.expression()
    if parser.next is None:
        return value, None
    if not units:
        raise Unreadable(f"'{parser.next.text}' after an expression")
    scale, unit = unit_of(run[parser.place :])
    if scale > 1:
        value = Num(value.value * scale) if isinstance(value, Num) else Call("mul", (value, Num(Fraction(scale))))
    if variables(value):
        raise Unreadable("a unit after a variable")
    return value, unit


def _plus_minus(value: Node, unit: Unit | None) -> Answer:
    """Return both values of an expression with a plus-minus sign."""
    count = sum(isinstance(part, Call) and part.name == "pm" for part in walk(value))
    if not count:
        return Quantity(value, unit)
    if count > 1:
        raise Unreadable("two plus-minus signs")
    return items([Quantity(_chosen(value, sign), unit) for sign in ("add", "sub")])


def _chosen(node: Node, sign: str) -> Node:
    if not isinstance(node, Call):
        return node
    args = tuple(_chosen(arg, sign) for arg in node.args)
    if node.name != "pm":
        return Call(node.name, args)
    right = args[1] if sign == "add" else negative(args[1])
    total = exact(Call("add", (args[0], right)))
    if total is not None:
        return Num(total)
    return right if args[0] == Num(Fraction(0)) else Call("add", (args[0], right))


def items(read: Sequence[Answer]) -> Answer:
    """Return answers without order. Names that are all equal are written once."""
    members: list[Answer] = []
    name: str | None = None
    for answer in read:
        if isinstance(answer, Named) and isinstance(answer.value, Items) and answer.value.kind == "set":
            members.extend(Named(answer.name, member) for member in answer.value.members)
        elif isinstance(answer, Items) and answer.kind == "set":
            members.extend(answer.members)
        else:
            members.append(answer)
    if len(members) > MOST_MEMBERS:
        raise Unreadable(f"more than {MOST_MEMBERS} members")
    members = [
        Named(re.sub(r"_\d+\Z", "", member.name), member.value) if isinstance(member, Named) else member
        for member in members
    ]
    names = {member.name for member in members if isinstance(member, Named)}
    if len(names) == 1 and isinstance(members[0], Named):  # x = 1 or 2
        name = members[0].name
        return Named(
            name, Items("set", tuple(member.value if isinstance(member, Named) else member for member in members))
        )
    if names and not all(isinstance(member, Named) for member in members):
        raise Unreadable("a list in which some values have names")
    return Items("set", tuple(members))
