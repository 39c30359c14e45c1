"""KTO's loss by hand, of a desirable and of an undesirable answer."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.preference.kto import kto
from tests.library.by_hand import QUARTER, t


def test_kto() -> None:
    reward, label, shift = t(1 + QUARTER, 1 + QUARTER), t(1, -1), t(1, 1)
    assert_close(kto(reward, label, shift, 1.0, 2.0, 4.0), t(2 * 0.25, 4 * 0.75))
