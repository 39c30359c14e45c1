"""The reward `correct` on cases that were written before its parser, by people who did not see it."""

from __future__ import annotations

import pytest

from docs.make.answers import counted, total
from tests.library.rewards.judged import DIALECTS, FRESH, MATH, cases, interval

ACCEPTED = {"hashes": 1, "answer_is": 7, "fractions": 3, "units": 4, "thousands": 3, "intervals": 1, "choice": 3}
"""Wrong answers that count as right: the words around a mark are not read, and unmarked text promises little."""
MISSED = {"answer_is": 18, "fractions": 12, "latex": 31}
"""Right answers that count as wrong, where they are more than 6 %, as docs/reports/answers.md publishes them: since the
parser has accepted fewer wrong answers of strangers, it reads fewer forms of right ones."""


@pytest.mark.parametrize("dialect", MATH)
def test_there_are_enough_cases(dialect: str) -> None:
    rows = cases(dialect)
    assert len(rows) >= 310 and sum(one.right for one in rows) >= 140
    assert len({(one.answer, one.completion) for one in rows}) == len(rows)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", DIALECTS)
def test_few_wrong_answers_count_as_right_and_few_right_ones_as_wrong(dialect: str) -> None:
    found = counted(dialect)
    assert found.false_positives <= ACCEPTED.get(dialect, 0)
    assert found.false_negatives <= MISSED.get(dialect, 0.06 * found.right)


@pytest.mark.slow
def test_fresh_cases_are_judged_as_at_first() -> None:
    found = total(counted(name, FRESH) for name in (*MATH, "choice"))
    assert found.right + found.wrong == 834 and found.false_positives <= 5
    assert found.false_negatives <= 16


def test_the_interval_of_a_share_is_clopper_and_pearsons() -> None:
    assert interval(0, 150) == pytest.approx((0.0, 1 - 0.025 ** (1 / 150)))
    assert interval(5, 100) == pytest.approx((0.016432, 0.112835), abs=1e-5)
    assert interval(10, 10) == pytest.approx((0.025**0.1, 1.0))
