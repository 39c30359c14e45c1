"""Whether a right answer only repeats the question: `17^2` to "What is 17^2?", `3/4` to "Write 3/4 as a decimal"."""

from __future__ import annotations

import re

_WRAPS = r"text\w*|math\w+|mbox|boxed|displaystyle|operatorname|left|right|big\w*|[,;:! ]|quad|qquad|limits"
_LAYOUT = re.compile(rf"\\(?:{_WRAPS})(?![a-z])|\\(?=[,;:!])", re.IGNORECASE)
_FRACTION = re.compile(r"\\[dtc]?frac\s*(?:\{([^{}]*)\}|(\w))\s*(?:\{([^{}]*)\}|(\w))")
_SIGNS = {
    "\\times": "*",
    "\\cdot": "*",
    "×": "*",
    "·": "*",
    "⋅": "*",
    "**": "^",
    "\\dbinom": "binom",
    "\\tbinom": "binom",
    "\\div": "/",
    "÷": "/",
    "−": "-",
    "π": "pi",
}
_RAISED = str.maketrans({digit: f"^{place}" for place, digit in enumerate("⁰¹²³⁴⁵⁶⁷⁸⁹")})
_TOKEN = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?|\.\d+|[a-z]+|[^\s(){}\[\]$\\'\"_*]")
_NUMBER = re.compile(r"[\d,]*\.?\d+")
_OPERATORS = frozenset("+-/^!=<>|√")


def is_echo(question: str, answer: str, gold: str) -> bool:
    """Return whether the answer stands in the question, in another spelling than the gold answer's.

    A number that is the gold answer's own may: `5.00` for 5, or `12 apples` for 12.
    """
    given, expected = _spelled(answer), _spelled(gold)
    if "=" in given and "=" not in expected:
        given = given[len(given) - given[::-1].index("=") :]
    if not given or given == expected or (_amount(given) is not None and _amount(given) == _amount(expected)):
        return False
    return f" {' '.join(given)} " in f" {' '.join(_spelled(question))} "


def _spelled(text: str) -> list[str]:
    """Return the parts of a text in one spelling, without brackets, spaces and fonts."""
    text = _LAYOUT.sub(" ", text.translate(_RAISED))
    for sign, other in _SIGNS.items():
        text = text.replace(sign, other)
    for _ in range(3):
        text = _FRACTION.sub(r"\1\2/\3\4", text)
    return _TOKEN.findall(text.lower().rstrip(". \n"))


def _amount(parts: list[str]) -> float | None:
    """Return the number of what is a number alone, or one with words after it."""
    numbers = [part for part in parts if _NUMBER.fullmatch(part)]
    if len(numbers) != 1 or not _OPERATORS.isdisjoint(parts[1:]):
        return None
    return float(numbers[0].replace(",", "")) * (-1 if parts[0] == "-" else 1)
