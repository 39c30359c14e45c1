"""The reward `correct` on cases that were written before its parser, by people who did not see it."""

from __future__ import annotations

import pytest

from tests.rewards.judged import DIALECTS, MATH, cases, count, interval
from tests.rewards.report import said

UNSEEN_FALSE_POSITIVES = {"hashes": 2, "answer_is": 1, "fractions": 1, "sets": 1}
"""Of the odd rows, which nobody who wrote the parser has looked at; the other dialects have none."""
UNSEEN_FALSE_NEGATIVES = {"boxed": 5, "hashes": 1, "answer_is": 12, "fractions": 1, "units": 6, "thousands": 3}
UNSEEN_FALSE_NEGATIVES |= {"latex": 5, "intervals": 5, "sets": 6, "choice": 7, "exact": 0}
"""At most; these are the measured ones."""


@pytest.mark.parametrize("dialect", MATH)
def test_there_are_enough_cases(dialect: str) -> None:
    rows = cases(dialect)
    assert len(rows) >= 310 and sum(one.right for one in rows) >= 140
    assert len({(one.answer, one.completion) for one in rows}) == len(rows)


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "numeric"])
def test_no_wrong_answer_of_the_even_rows_counts_as_right(dialect: str) -> None:
    pairs = [(one.right, right) for one, right in said(dialect) if one.number % 2 == 0]
    found = count(pairs)
    assert found.false_positives == 0
    assert found.false_negatives <= 0.05 * found.right


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "numeric"])
def test_the_odd_rows_are_not_worse_than_measured(dialect: str) -> None:
    pairs = [(one.right, right) for one, right in said(dialect) if one.number % 2 == 1]
    found = count(pairs)
    assert found.false_positives <= UNSEEN_FALSE_POSITIVES.get(dialect, 0)
    assert found.false_negatives <= UNSEEN_FALSE_NEGATIVES[dialect]


def test_the_interval_of_a_share_is_clopper_and_pearsons() -> None:
    assert interval(0, 150) == pytest.approx((0.0, 1 - 0.025 ** (1 / 150)))
    assert interval(5, 100) == pytest.approx((0.016432, 0.112835), abs=1e-5)
    assert interval(10, 10) == pytest.approx((0.025**0.1, 1.0))
