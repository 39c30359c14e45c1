"""IPO's loss by hand."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.preference.ipo import ipo
from tests.library.by_hand import t


def test_ipo() -> None:
    assert_close(ipo(t(2), t(-1), 0.1), t((3 - 5) ** 2))
