"""What losses of labelled answers share."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.preference_loss import label_weight, signed
from tests.library.by_hand import t


def test_signed() -> None:
    assert_close(signed(t(2, 3), t(1, -1)), t(2, -3))


def test_label_weight() -> None:
    assert_close(label_weight(t(0, 0), t(1, -1), 2.0, 4.0), t(2, 4))
