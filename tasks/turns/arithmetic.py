"""The value of an arithmetic expression, computed by a small parser instead of Python's `eval`."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

LONGEST: Final = 64
"""Characters of an expression, which also bound its value and its nesting."""
_TOKENS: Final = re.compile(r"\s*(?:([0-9]+)|([-+*/()]))")


def calculate(expression: str) -> Fraction:
    """Return the exact value of an expression of whole numbers, + - * / and parentheses, or raise ValueError."""
    if len(expression) > LONGEST:
        raise ValueError(f"longer than {LONGEST} characters")
    tokens, end = [], 0
    while match := _TOKENS.match(expression, end):
        tokens.append(match.group().strip())
        end = match.end()
    if expression[end:].strip():
        raise ValueError(f"unexpected {expression[end:].strip()[0]!r}")
    parser = _Parser(tokens)
    value = parser.sum()
    if parser.next:
        raise ValueError(f"unexpected {parser.next!r}")
    return value


class _Parser:
    """Recursive descent over the tokens."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = [*reversed(tokens)]

    @property
    def next(self) -> str:
        return self._tokens[-1] if self._tokens else ""

    def sum(self) -> Fraction:
        value = self._product()
        while self.next in ("+", "-"):
            value = value + self._product() if self._tokens.pop() == "+" else value - self._product()
        return value

    def _product(self) -> Fraction:
        value = self._factor()
        while self.next in ("*", "/"):
            operator, right = self._tokens.pop(), self._factor()
            if operator == "/" and not right:
                raise ValueError("division by zero")
            value = value * right if operator == "*" else value / right
        return value

    def _factor(self) -> Fraction:
        token = self._tokens.pop() if self._tokens else ""
        if token == "-":
            return -self._factor()
        if token == "(":
            value = self.sum()
            if not self._tokens or self._tokens.pop() != ")":
                raise ValueError("a parenthesis is not closed")
            return value
        if not token.isdigit():
            raise ValueError(f"a number is missing before {token!r}" if token else "a number is missing at the end")
        return Fraction(int(token))
