"""Unions of intervals: join, intersect, complement and compare them."""

from __future__ import annotations

from collections.abc import Sequence

from posttrain.answers.nodes import (
    INFINITY,
    MINUS_INFINITY,
    WHOLE_LINE,
    Answer,
    Items,
    Node,
    Quantity,
    Reals,
    Span,
    Unreadable,
    variables,
)
from posttrain.answers.numbers import less, same_number

MOST_SPANS = 20


def reals_of(answer: Answer) -> Reals:
    """Return a set of numbers as intervals. (1, 2) is open; {3} is one number."""
    if isinstance(answer, Reals):
        return answer
    if isinstance(answer, Items) and answer.kind == "(" and len(answer.members) == 2:
        low, high = (_plain(member) for member in answer.members)
        return Reals((Span(low, False, high, False),))
    if isinstance(answer, Items) and answer.kind == "set":
        return Reals(tuple(Span(number, True, number, True) for number in map(_plain, answer.members)))
    raise Unreadable("not a set of numbers")


def _plain(answer: Answer) -> Node:
    if not isinstance(answer, Quantity) or answer.unit is not None:
        raise Unreadable("an interval whose ends are not numbers")
    return answer.value


def union(sets: Sequence[Reals]) -> Reals:
    """Return all numbers of all sets."""
    spans = tuple(span for reals in sets for span in reals.spans)
    return Reals(normal(spans), _variable(sets))


def intersection(sets: Sequence[Reals]) -> Reals:
    """Return the numbers that are in every set."""
    spans = sets[0].spans
    for reals in sets[1:]:
        spans = tuple(both for a in spans for b in reals.spans if (both := _overlap(a, b)) is not None)
    return Reals(normal(spans), _variable(sets))


def complement(answer: Answer) -> Reals:
    """Return all numbers that are not in a set, or that differ from a number."""
    if isinstance(answer, Quantity):
        answer = Items("set", (answer,))
    result = WHOLE_LINE
    for span in normal(reals_of(answer).spans):
        around = []
        if span.low != MINUS_INFINITY:
            around.append(Span(MINUS_INFINITY, False, span.low, not span.low_closed))
        if span.high != INFINITY:
            around.append(Span(span.high, not span.high_closed, INFINITY, False))
        result = intersection([result, Reals(tuple(around))])
    return result


def same_reals(left: Reals, right: Reals) -> bool:
    """Tell whether two unions contain the same numbers."""
    if left.variable and right.variable and left.variable != right.variable:
        return False
    a, b = normal(left.spans), normal(right.spans)
    return len(a) == len(b) and all(map(_same, a, b))


def _variable(sets: Sequence[Reals]) -> str | None:
    names = {reals.variable for reals in sets}
    if len(names) > 1:
        raise Unreadable("inequalities of different variables")
    return names.pop() if names else None


def _same(a: Span, b: Span) -> bool:
    brackets = (a.low_closed, a.high_closed) == (b.low_closed, b.high_closed)
    return brackets and same_end(a.low, b.low) and same_end(a.high, b.high)


def same_end(a: Node, b: Node) -> bool:
    """Tell whether two ends are the same number or the same infinity."""
    infinite = (INFINITY, MINUS_INFINITY)
    return a == b if a in infinite or b in infinite else same_number(a, b)


def normal(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Return the intervals in order, without empty intervals, joined where they touch.

    Intervals of letters are unchanged.
    """
    if len(spans) > MOST_SPANS:
        raise Unreadable("too many intervals")
    for span in spans:
        if (span.low_closed and span.low == MINUS_INFINITY) or (span.high_closed and span.high == INFINITY):
            raise Unreadable("infinity does not belong to an interval")
    if len(spans) == 1 and (variables(spans[0].low) or variables(spans[0].high)):
        return tuple(spans)
    ordered: list[Span] = []
    for span in spans:
        if less(span.high, span.low):
            raise Unreadable("an interval whose ends are in the wrong order")
        if same_end(span.low, span.high) and not (span.low_closed and span.high_closed):
            continue
        place = next((n for n, other in enumerate(ordered) if less(span.low, other.low)), len(ordered))
        ordered.insert(place, span)
    joined: list[Span] = []
    for span in _closed_first(ordered):
        if joined and _touch(joined[-1], span):
            joined[-1] = _join(joined[-1], span)
        else:
            joined.append(span)
    return tuple(joined)


def _closed_first(spans: list[Span]) -> list[Span]:
    """Return the intervals in order. If two begin at the same number, the closed one is first."""
    for place in range(len(spans) - 1):
        first, second = spans[place], spans[place + 1]
        if second.low_closed and not first.low_closed and same_end(first.low, second.low):
            spans[place], spans[place + 1] = second, first
    return spans


def _touch(a: Span, b: Span) -> bool:
    return less(b.low, a.high) or (same_end(a.high, b.low) and (a.high_closed or b.low_closed))


def _join(a: Span, b: Span) -> Span:
    if same_end(a.high, b.high):
        return Span(a.low, a.low_closed, a.high, a.high_closed or b.high_closed)
    high = b if less(a.high, b.high) else a
    return Span(a.low, a.low_closed, high.high, high.high_closed)


def _overlap(a: Span, b: Span) -> Span | None:
    if same_end(a.low, b.low):
        low, low_closed = a.low, a.low_closed and b.low_closed
    else:
        low, low_closed = (b.low, b.low_closed) if less(a.low, b.low) else (a.low, a.low_closed)
    if same_end(a.high, b.high):
        high, high_closed = a.high, a.high_closed and b.high_closed
    else:
        high, high_closed = (a.high, a.high_closed) if less(a.high, b.high) else (b.high, b.high_closed)
    if less(high, low) or (same_end(low, high) and not (low_closed and high_closed)):
        return None
    return Span(low, low_closed, high, high_closed)
