"""The values of expressions: exact if rational, else to many digits. Identities are tested at random points."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from fractions import Fraction
from functools import cache
from typing import Any

from posttrain.answers.nodes import Call, Const, Node, Num, Unreadable, Var, variables, walk

MOST_BITS = 20_000
"""Maximum number of bits of an intermediate number. Larger numbers are unreadable."""
LARGEST_FACTORIAL = 1000
DIGITS = 50
MORE_DIGITS = 60
POINTS = 8
AGREEING = 4
"""The number of points at which both expressions must have a value."""
Value = Any  # Fraction, or mpmath's mpf or mpc
_LOG2_10 = math.log2(10)


def exact(node: Node) -> Fraction | None:
    """Return the value of an expression that is rational by its operations; None for others."""
    try:
        value = Evaluation(30, {}, "e").value(node)
    except Unreadable:
        return None
    return value if isinstance(value, Fraction) else None


def same_number(left: Node, right: Node) -> bool:
    """Tell whether two expressions are equal for all values of their variables."""
    if left == right:
        _check_defined(left)
        return True
    names = variables(left)
    if not variables(right) <= names:
        return False
    if not names:
        return _same_constant(left, right)
    return _identical(left, right, sorted(names))


def is_close(left: Node, right: Node) -> bool:
    """Tell whether `right` may be a rounding of `left`."""
    a, b = (Evaluation(30, {}, "e").value(node) for node in (left, right))
    if not isinstance(b, Fraction) or (not isinstance(a, Fraction) and _context(30).im(a) != 0):
        return False
    places = next((n for n in range(30) if 10**n % b.denominator == 0), None)
    if places is None or (isinstance(a, Fraction) and 10**places % a.denominator == 0):
        return bool(a == b)
    gap = abs(float(a) - float(b))
    return gap <= 10.0**-places and gap <= 0.02 * abs(float(a))


def less(left: Node, right: Node) -> bool:
    """Tell whether left < right. Both must be real constants or infinite."""
    a, b = _end(left), _end(right)
    return bool(a < b)


def _end(node: Node) -> float | Value:
    if node == Const("infinity"):
        return math.inf
    if node == Call("neg", (Const("infinity"),)):
        return -math.inf
    value = Evaluation(DIGITS, {}, "e").value(node)
    if isinstance(value, Fraction):
        return _context(DIGITS).mpf(value.numerator) / value.denominator
    if _context(DIGITS).im(value) != 0:
        raise Unreadable("an interval with a complex end")
    return value


def _check_defined(node: Node) -> None:
    """Reject expressions without a value for any values of its variables, e.g. 0/0."""
    if isinstance(node, Call) and not variables(node) and any(part == Const("infinity") for part in walk(node)):
        return
    if any(isinstance(part, Call) and part.name == "div" and exact(part.args[1]) == 0 for part in walk(node)):
        raise Unreadable("a division by 0")


def _bases(left: Node, right: Node) -> tuple[str, ...]:
    """Return the possible bases of `log`. An answer is right if it is right with one of them."""
    has_log = any(isinstance(part, Call) and part.name == "log" for node in (left, right) for part in walk(node))
    return ("e", "10") if has_log else ("e",)


def _digits(left: Node, right: Node) -> int:
    """Return more digits than any number in the text has."""
    sizes = [part.value for node in (left, right) for part in walk(node) if isinstance(part, Num)]
    longest = max((max(v.numerator.bit_length(), v.denominator.bit_length()) for v in sizes), default=0)
    return DIGITS + int(longest / _LOG2_10) + 1


def _same_constant(left: Node, right: Node) -> bool:
    digits = _digits(left, right)
    return all(_same_at(left, right, {}, base, digits) is True for base in _bases(left, right))


def _same_at(left: Node, right: Node, point: Mapping[str, Fraction], base: str, digits: int) -> bool | None:
    """Tell whether both have the same value at a point; None if neither is real there."""
    a, b = (Evaluation(digits, point, base).value(node) for node in (left, right))
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    c, d = (Evaluation(digits + MORE_DIGITS, point, base).value(node) for node in (left, right))
    first, second = _difference(a, b, digits), _difference(c, d, digits + MORE_DIGITS)
    agree = bool(second == 0 or second < first * _context(30).mpf(10) ** (-MORE_DIGITS // 2))
    if agree or not point:
        return agree
    left_real, right_real = _is_real(c, digits), _is_real(d, digits)
    if not left_real and (right_real or not any(part == Const("i") for part in walk(left))):
        return None
    return False


def _difference(a: Value, b: Value, digits: int) -> Value:
    """Return |a - b|, relative to the larger one."""
    context = _context(digits)
    a, b = (context.mpf(v.numerator) / v.denominator if isinstance(v, Fraction) else v for v in (a, b))
    size = max(abs(a), abs(b))
    gap = abs(a - b) / size if size else context.mpf(0)
    return context.mpf(0) if gap < context.mpf(10) ** (12 - digits) else gap


def _is_real(value: Value, digits: int) -> bool:
    if isinstance(value, Fraction):
        return True
    context = _context(digits)
    return bool(abs(context.im(value)) <= abs(value) * context.mpf(10) ** (-digits // 2))


def _identical(left: Node, right: Node, names: list[str]) -> bool:
    """Tell whether two expressions agree at random points with both signs, some of them below 1."""
    draw = random.Random(f"{left}{right}")
    for base in _bases(left, right):
        agreeing = 0
        for number in range(POINTS):
            point = {name: _random(draw, number) for name in names}
            try:
                same = _same_at(left, right, point, base, DIGITS)
            except Unreadable:
                if number == POINTS - 1 and agreeing < AGREEING:
                    raise
                continue
            if same is False:
                return False
            agreeing += same is True
        if agreeing < AGREEING:
            raise Unreadable("expressions without values to compare")
    return True


def _random(draw: random.Random, number: int) -> Fraction:
    size = Fraction(draw.randrange(10_007, 99_991), 100_003 if number % 4 == 1 else 30_011)
    return size if number < POINTS - 3 or draw.random() < 0.3 else -size


@cache
def _context(digits: int) -> Any:
    import mpmath  # only answers that are not rational need it

    context = mpmath.MPContext()
    context.dps = digits
    return context


class Evaluation:
    """Values of expressions at one point, to a number of digits. `base`: the meaning of log without a base."""

    def __init__(self, digits: int, point: Mapping[str, Fraction], base: str) -> None:
        self._digits, self._point, self._base = digits, point, base

    def value(self, node: Node) -> Value:
        """Return the value of an expression."""
        try:
            return self._value(node)
        except (ArithmeticError, ValueError, TypeError, NotImplementedError) as error:
            raise Unreadable(f"no value: {error}") from error

    def _value(self, node: Node) -> Value:
        if isinstance(node, Num):
            return node.value
        if isinstance(node, Const):
            if node.name == "infinity":
                raise Unreadable("infinity within an expression")
            context = _context(self._digits)
            return {"pi": context.pi, "e": context.e, "i": context.j}[node.name] * 1
        if isinstance(node, Var):
            if node.name not in self._point:
                raise Unreadable(f"the variable {node.name} has no value")
            return self._point[node.name]
        return self._bounded(self._call(node.name, [self._value(arg) for arg in node.args]))

    def _bounded(self, value: Value) -> Value:
        if isinstance(value, Fraction):
            bits = max(value.numerator.bit_length(), value.denominator.bit_length())
        else:
            context = _context(self._digits)
            if not context.isfinite(value):
                raise Unreadable("a value that is not finite")
            bits = abs(context.mag(value)) if value != 0 else 0
        if bits > MOST_BITS:
            raise Unreadable("a number that is too large")
        return value

    def _number(self, value: Value) -> Value:
        """Return a value as mpmath's number."""
        if isinstance(value, Fraction):
            return _context(self._digits).mpf(value.numerator) / value.denominator
        return value

    def _call(self, name: str, args: list[Value]) -> Value:
        rational = all(isinstance(arg, Fraction) for arg in args)
        if name in ("add", "mul", "div", "neg"):
            return self._arithmetic(name, args if rational else [self._number(arg) for arg in args])
        if name in ("pow", "root"):
            return self._power(name, *args)
        if name in ("factorial", "binom"):
            return self._counted(name, args)
        if name in ("floor", "ceil"):
            if not rational:
                near = _context(self._digits).nint(args[0])
                if _context(self._digits).im(args[0]) != 0 or abs(args[0] - near) < 1e-20:
                    raise Unreadable(f"{name} of what may be a whole number")
            return Fraction(math.floor(args[0]) if name == "floor" else math.ceil(args[0]))
        if name == "abs":
            return abs(args[0])
        return self._function(name, self._number(args[0]))

    def _arithmetic(self, name: str, args: list[Value]) -> Value:
        if name == "neg":
            return -args[0]
        left, right = args
        if name == "mul":
            return left * right
        if name == "div":
            return left / right
        if isinstance(left, Fraction):
            return left + right
        total, size = left + right, max(abs(left), abs(right))
        lost = _context(self._digits).mpf(10) ** (15 - self._digits)
        small = min(abs(left), abs(right))
        if small and small < size * lost:
            raise Unreadable("a sum of a large and a tiny number")
        return total if abs(total) > size * lost else total * 0

    def _power(self, name: str, base: Value, power: Value) -> Value:
        if name == "root":
            if not isinstance(power, Fraction) or power.denominator != 1 or not 1 < power < 200:
                raise Unreadable("a root that is not a whole number")
            power = 1 / power
        if not isinstance(power, Fraction):
            if base == 0 or abs(power) > MOST_BITS:
                raise Unreadable("a power of 0, or a power that is too large")
            return _context(self._digits).power(self._number(base), power)
        if abs(power) > MOST_BITS:
            raise Unreadable("an exponent that is too large")
        if power.denominator == 1:
            return self._whole_power(base, int(power))
        if isinstance(base, Fraction) and (root := _exact_root(base, power.denominator)) is not None:
            return self._whole_power(root, power.numerator)
        number = self._number(base)
        context = _context(self._digits)
        if power.denominator % 2 and power.denominator < 100 and context.im(number) == 0 and context.re(number) < 0:
            sign = -1 if power.numerator % 2 else 1  # the real root of a negative number, as in schools
            return sign * context.power(-context.re(number), self._number(power))
        return context.power(number, self._number(power))

    def _whole_power(self, base: Value, power: int) -> Value:
        if not isinstance(base, Fraction):
            return self._bounded(base) ** power
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if (bits - 1) * abs(power) > MOST_BITS:
            raise Unreadable("a power that is too large")
        if base == 0 and power <= 0:
            raise Unreadable("0 to the power of 0 or less")
        return base**power

    def _counted(self, name: str, args: list[Value]) -> Value:
        if all(isinstance(arg, Fraction) and arg.denominator == 1 for arg in args):
            if any(not 0 <= arg <= LARGEST_FACTORIAL for arg in args):
                raise Unreadable(f"{name} of a number that is too large or negative")
            whole = [int(arg) for arg in args]
            return Fraction(math.factorial(whole[0]) if name == "factorial" else math.comb(whole[0], whole[1]))
        if not self._point:
            raise Unreadable(f"{name} of a fraction")
        context = _context(self._digits)
        numbers = [self._number(arg) for arg in args]
        if any(abs(number) > 100 for number in numbers):
            raise Unreadable(f"{name} of a number that is too large")
        return context.factorial(*numbers) if name == "factorial" else context.binomial(*numbers)

    def _function(self, name: str, number: Value) -> Value:
        context = _context(self._digits)
        if name in ("ln", "log", "log10"):
            if number == 0:
                raise Unreadable("the logarithm of 0")
            if number == 1:
                return Fraction(0)
            result = context.log(number)
            return result / context.log(10) if name == "log10" or (name == "log" and self._base == "10") else result
        if name not in _FUNCTIONS:
            raise Unreadable(f"{name} within an expression")
        steep = ("tanh", "arctan", "exp", "sinh", "cosh")
        if abs(number) > (40 if name in steep else 10**6):
            raise Unreadable(f"{name} of a number that is too large")
        function, pole = _FUNCTIONS[name]
        if pole is not None and abs(pole(context, number)) < context.mpf(10) ** (15 - self._digits):
            raise Unreadable(f"{name} has no value there")
        result = function(context, number)
        return result * 0 if abs(result) < context.mpf(10) ** (15 - self._digits) else result


Function = Callable[[Any, Value], Value]
_COS: Function = lambda c, x: c.cos(x)  # noqa: E731
_SIN: Function = lambda c, x: c.sin(x)  # noqa: E731
_FUNCTIONS: dict[str, tuple[Function, Function | None]] = {
    "sin": (_SIN, None),
    "cos": (_COS, None),
    "tan": (lambda c, x: c.tan(x), _COS),
    "sec": (lambda c, x: c.sec(x), _COS),
    "cot": (lambda c, x: c.cos(x) / c.sin(x), _SIN),
    "csc": (lambda c, x: c.csc(x), _SIN),
    "arcsin": (lambda c, x: c.asin(x), None),
    "arccos": (lambda c, x: c.acos(x), None),
    "arctan": (lambda c, x: c.atan(x), None),
    "sinh": (lambda c, x: c.sinh(x), None),
    "cosh": (lambda c, x: c.cosh(x), None),
    "tanh": (lambda c, x: c.tanh(x), None),
    "exp": (lambda c, x: c.exp(x), None),
}


def _exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Return the rational root; None if there is none."""
    if degree > 200 or (value < 0 and degree % 2 == 0):
        return None
    sign = -1 if value < 0 else 1
    roots = [_whole_root(abs(part), degree) for part in (value.numerator, value.denominator)]
    return None if roots[0] is None or roots[1] is None else sign * Fraction(roots[0], roots[1])


def _whole_root(value: int, degree: int) -> int | None:
    if value < 2:
        return value
    if degree == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        root = low
    return root if root**degree == value else None
