"""Use the prompt's hints about its answer: a percentage, an order, a rounding, a unit, or a repeated expression."""

from __future__ import annotations

import re

from posttrain.answers.equal import is_scientific
from posttrain.answers.nodes import Answer, Call, Items, Node, Num, Quantity, Unreadable, walk
from posttrain.answers.numbers import exact, is_close
from posttrain.answers.read import read

_PERCENT = re.compile(r"\s*(?:\\?%|\\text\s*\{\s*(?:\\?%|percent)\s*\}|per\s?cent)\s*\.?\s*\Z", re.IGNORECASE)
_ASKS_PERCENT = re.compile(r"\b(?:what|which|in|as a|the) per\s?cent\b|\bpercentage\b", re.IGNORECASE)
_ASKS_ORDER = re.compile(
    r"\b(?:increasing|decreasing|ascending|descending|numerical|alphabetical) order\b|\border from\b"
    r"|\b(?:sort|arrange|rank)\b|\b(?:least|smallest|lowest) to (?:greatest|largest|highest)\b"
    r"|\b(?:greatest|largest|highest) to (?:least|smallest|lowest)\b",
    re.IGNORECASE,
)
_ASKS_ROUNDED = re.compile(r"\b(?:round|nearest|approximat|estimat|decimal places?)", re.IGNORECASE)
_ASKS_FACTORS = re.compile(
    r"\bprime factor|\bproduct of (?:powers of )?primes?|\bscientific notation|\bstandard form", re.IGNORECASE
)
_FONTS = re.compile(r"\\(?:left|right|mathbf|mathrm|text\w*|vec|bm|boldsymbol|[dt](?=frac)|[,;:! ])|[${}\s*]")
_ROUGHLY = re.compile(r"\A(?:approximately|about|roughly|around|≈|\\approx|~)\s*", re.IGNORECASE)


def as_asked(question: str, answer: str, gold: str) -> str:
    """Remove parts that the prompt makes redundant: the sign of a requested percentage, or a repeated `u + v =`."""
    if _ASKS_PERCENT.search(question) and not _PERCENT.search(gold) and (bare := _PERCENT.sub("", answer)) != answer:
        whole = _number(gold)
        number = _number(bare)
        if whole is not None and number is not None and whole == number:
            answer = bare
    if _ASKS_ROUNDED.search(question):
        answer = _ROUGHLY.sub("", answer)
        exact_part, _, rounded = answer.rpartition("\\approx") if "\\approx" in answer else answer.rpartition("≈")
        if exact_part and "." in gold and _rounds(exact_part, rounded):
            answer = rounded
    if _ASKS_ORDER.search(question) and re.fullmatch(r"[-\d\s.,;/()\[\]{}<>$\\lgt]+", answer):
        answer = re.sub(r"\s*(?:<|>|\\[lg]t)\s*", ", ", answer).strip(" $()[].")
    if _ASKS_FACTORS.search(question):
        answer = re.sub(r"(\d)[eE]([+-]?\d{1,3})\b", r"\1 \\times 10^{\2}", answer)
    return _without_left_side(question, answer)


def _without_left_side(question: str, answer: str) -> str:
    """The value of `u + v = (1, 2)`, if the prompt has `u + v`; an equation of the prompt's stays."""
    left, _, right = answer.replace("$", "").partition("=")
    spelled, asked = _spelled(left), _spelled(question)
    is_name = re.fullmatch(r"[a-z]+(?:_\w+)?(?:\([a-z]\))?", spelled) is not None
    if not right or "=" in right or len(spelled) < 2 or is_name or f"{spelled}=" in asked or spelled not in asked:
        return answer
    return right


def why_not_as_asked(question: str, answer: str, gold: str) -> str | None:
    """Reason why an answer equal to the gold answer does not have the requested form; None if it has."""
    try:
        said, expected = read(answer), read(gold)
    except Unreadable:
        return None
    if _ASKS_ORDER.search(question) and isinstance(said, Items) and isinstance(expected, Items):
        values = [[_value(member) for member in one.members] for one in (said, expected)]
        if None not in values[0] and None not in values[1] and values[0] != values[1]:
            return "it is in another order"
    if _ASKS_FACTORS.search(question):
        given, aim = factors(said), factors(expected)
        if aim is not None and len(aim) > 0 and _has_power(expected) and given != aim:
            return "its factors differ from the requested factors"
    if _ASKS_PERCENT.search(question) and re.match(r"\s*\\?\$\s?\d", answer) and not re.search(r"\$", gold):
        return "it is an amount of money, but the prompt asks for a percentage"
    return None


def factors(answer: Answer) -> dict[object, int] | None:
    """Base -> exponent, of a product of powers of numbers; None for anything else."""
    if not isinstance(answer, Quantity):
        return None
    exponents: dict[object, int] = {}
    stack: list[Node] = [answer.value]
    while stack:
        node = stack.pop()
        if isinstance(node, Num):
            exponents[node.value] = exponents.get(node.value, 0) + 1
        elif isinstance(node, Call) and node.name == "mul":
            stack.extend(node.args)
        elif isinstance(node, Call) and node.name == "pow" and (power := exact(node.args[1])) is not None:
            base = exact(node.args[0])
            if base is None or power.denominator != 1:
                return None
            exponents[base] = exponents.get(base, 0) + int(power)
        else:
            return None
    return exponents


def _has_power(answer: Answer) -> bool:
    return isinstance(answer, Quantity) and any(
        isinstance(part, Call) and (part.name in ("pow", "mul") or is_scientific(part)) for part in walk(answer.value)
    )


def _number(text: str) -> object:
    try:
        answer = read(text)
    except Unreadable:
        return None
    return exact(answer.value) if isinstance(answer, Quantity) and answer.unit is None else None


def _value(answer: Answer) -> object:
    return exact(answer.value) if isinstance(answer, Quantity) else None


def _rounds(text: str, rounded: str) -> bool:
    try:
        first, second = read(text.rpartition("=")[2]), read(rounded)
        return isinstance(first, Quantity) and isinstance(second, Quantity) and is_close(first.value, second.value)
    except Unreadable:
        return False


def _spelled(text: str) -> str:
    """A text without fonts, spaces and dollar signs."""
    return _FONTS.sub("", text.replace("°", "^\\circ")).lower()
