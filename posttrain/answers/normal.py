r"""A normal form of expressions: rational numbers are computed, terms and factors have no order, brackets stay.

Two expressions with one normal form differ by nothing but such changes as `+ 0`, `\cdot 1`, `-(-x)`, a fraction whose
both parts are doubled, or the order of terms. Products of sums and roots stay as they are: (x+1)^2 and x^2+2x+1 differ,
and so do the roots of 72 and 6 times the root of 2.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

from posttrain.answers.nodes import Call, Const, Node, Num, Unreadable, Var, variables
from posttrain.answers.numbers import exact, less

Base = tuple[object, ...]
"""A factor: a number under a root, a name, a function, or a sum."""
Term = frozenset[tuple[Base, "Fraction | Normal"]]
"""Factors and their powers."""
Normal = frozenset[tuple[Term, Fraction]]
"""Terms and their coefficients."""
ONE: Term = frozenset()
LARGEST_POWER = 64
FOLDED = frozenset({"add", "mul", "div", "neg", "pow", "root"})


@lru_cache(maxsize=4096)
def normal(node: Node) -> Normal:
    """The normal form of an expression."""
    if isinstance(node, Num):
        return _number(node.value)
    if isinstance(node, Const | Var):
        return _single((type(node).__name__, node.name))
    if node.name not in FOLDED and (value := exact(node)) is not None:
        return _number(value)
    match node.name, [normal(arg) for arg in node.args]:
        case "add", [left, right]:
            return _sum(left, right)
        case "neg", [inner]:
            return _scaled(inner, Fraction(-1))
        case "mul", [left, right]:
            return _product(left, right)
        case "div", [top, bottom]:
            return _product(top, _power(bottom, Fraction(-1)))
        case "pow", [base, exponent]:
            power = _rational(exponent)
            return _power(base, exponent if power is None else power)
        case "root", [base, degree] if order := _rational(degree):
            return _power(base, 1 / order)
        case "abs", [inner] if _is_positive(node.args[0]):
            return inner
        case name, args:
            return _single((name, *args))


def is_sum(form: Normal) -> bool:
    """True if it has several terms."""
    return len(form) > 1


def sums_within(form: Normal) -> int:
    """Count the factors that are sums; a power counts as that many factors."""
    count = 0
    for term, _ in form:
        for base, power in term:
            if base[0] == "sum":
                count += int(power) if isinstance(power, Fraction) and power.denominator == 1 and power > 0 else 1
    return count


def has_open_root(form: Normal) -> bool:
    """True if a square root contains a square factor, e.g. the root of 72."""
    for term, _ in form:
        for base, power in term:
            if base[0] == "number" and isinstance(power, Fraction) and isinstance(base[1], Fraction):
                inside = base[1].numerator
                if any(inside % n**power.denominator == 0 for n in range(2, min(inside, 1000))):
                    return True
    return False


def _number(value: Fraction) -> Normal:
    return frozenset({(ONE, value)}) if value else frozenset()


def _single(base: Base, power: Fraction | Normal = Fraction(1)) -> Normal:
    return frozenset({(frozenset({(base, power)}), Fraction(1))})


def _rational(form: Normal) -> Fraction | None:
    if not form:
        return Fraction(0)
    ((term, value), *more) = form
    return value if not more and term == ONE else None


def _sum(left: Normal, right: Normal) -> Normal:
    total: dict[Term, Fraction] = dict(left)
    for term, value in right:
        total[term] = total.get(term, Fraction(0)) + value
    return frozenset((term, value) for term, value in total.items() if value)


def _scaled(form: Normal, factor: Fraction) -> Normal:
    return frozenset((term, value * factor) for term, value in form if factor)


def _product(left: Normal, right: Normal) -> Normal:
    for one, other in ((left, right), (right, left)):
        if (factor := _rational(one)) is not None and (factor in (0, 1) or not is_sum(other)):
            return _scaled(other, factor)
    (first, a), (second, b) = _factors(left), _factors(right)
    powers: dict[Base, Fraction | Normal] = dict(first)
    for base, power in second:
        powers[base] = _added(powers[base], power) if base in powers else power
    nonzero = {base: power for base, power in powers.items() if power}
    numbers, value = {}, a * b
    for base, power in nonzero.items():
        if base[0] == "number" and isinstance(power, Fraction) and power.denominator == 1:
            value *= base[1] ** power.numerator  # type: ignore[operator]
        elif len(nonzero) == 1 and base[0] == "sum" and power == 1:
            return _scaled(base[1], value) if value == 1 else _only(base, power, value)  # type: ignore[arg-type]
        else:
            numbers[base] = power
    return frozenset({(frozenset(numbers.items()), value)})


def _only(base: Base, power: Fraction | Normal, value: Fraction) -> Normal:
    return frozenset({(frozenset({(base, power)}), value)})


def _factors(form: Normal) -> tuple[Term, Fraction]:
    """The factors and the coefficient of one term; a sum is one factor."""
    if is_sum(form):
        return frozenset({(("sum", form), Fraction(1))}), Fraction(1)
    ((term, value),) = form or {(ONE, Fraction(0))}
    return term, value


def _added(one: Fraction | Normal, other: Fraction | Normal) -> Fraction | Normal:
    if isinstance(one, Fraction) and isinstance(other, Fraction):
        return one + other
    both = _sum(*(_number(power) if isinstance(power, Fraction) else power for power in (one, other)))
    value = _rational(both)
    return both if value is None else value


def _power(base: Normal, power: Fraction | Normal) -> Normal:
    if not isinstance(power, Fraction):
        return _single(("power", base, power))
    if power == 1 or not power:
        return base if power else _number(Fraction(1))
    term, value = _factors(base)
    if not value:
        if power < 0:
            raise Unreadable("a division by 0")
        return frozenset()
    if abs(power) > LARGEST_POWER:
        return _single(("power", base, _number(power)))
    raised = {inner: _times(exponent, power) for inner, exponent in term}
    whole = frozenset({(frozenset(raised.items()), Fraction(1))})
    return _product(whole, _root(value, power))


def _times(exponent: Fraction | Normal, power: Fraction) -> Fraction | Normal:
    return exponent * power if isinstance(exponent, Fraction) else _scaled(exponent, power)


def _root(value: Fraction, power: Fraction) -> Normal:
    """A rational number to a rational power; a root that is not rational stays."""
    if power.denominator == 1:
        return _number(value**power.numerator)
    root = exact(Call("pow", (Num(value), Num(power)))) if value > 0 else None
    return _single(("number", value), power) if root is None else _number(root)


def _is_positive(node: Node) -> bool:
    try:
        return not variables(node) and less(Num(Fraction(0)), node)
    except Unreadable:
        return False


def operations(node: Node) -> int:
    """The number of operations in an expression; signs and fractions of two numbers do not count."""
    if not isinstance(node, Call):
        return 0
    if node.name == "div" and all(isinstance(arg, Num) for arg in node.args):
        return 0
    return (node.name != "neg") + sum(map(operations, node.args))
