"""AOT by hand: its loss, and what each answer is compared with."""

from __future__ import annotations

import math

from torch.testing import assert_close

from posttrain.algorithms.preference.aot import aot, by_margin, by_side, of_same_rank
from tests.library.by_hand import QUARTER, t


def test_aot() -> None:
    assert_close(aot(t(2), t(-1), QUARTER / 3), t(-math.log(0.75)))


def test_of_same_rank() -> None:
    assert_close(of_same_rank(t(5, -1, 2), t(30, 10, 20)), t(30, 10, 20))
    assert_close(of_same_rank(t(5, -1, 2), t(10, 20, 30)), t(30, 10, 20))


def test_by_side_and_by_margin() -> None:
    high, low = t(4, 1), t(0, 3)
    assert_close(by_side(high, low, t(7, 7)), (t(3, 0), t(1, 4)))
    assert_close(by_margin(high, low, t(1, 2)), (t(1, 2), t(3, 2)))  # margins 5 and 0, against 2 and 1
