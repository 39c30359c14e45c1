"""The two losses of APO by hand."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.preference.apo import apo_down, apo_zero
from tests.library.by_hand import QUARTER, t


def test_apo_zero() -> None:
    assert_close(apo_zero(t(QUARTER), t(-QUARTER), 1.0), t(0.25 + 0.25))


def test_apo_down() -> None:
    assert_close(apo_down(t(QUARTER), t(-QUARTER), 1.0), t(0.75 + 1 - 0.9))
