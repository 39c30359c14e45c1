"""BCO's loss by hand, of a desirable and of an undesirable answer."""

from __future__ import annotations

import math

from torch.testing import assert_close

from posttrain.algorithms.preference.bco import bco
from tests.library.by_hand import QUARTER, t


def test_bco() -> None:
    reward, label, shift = t(1 + QUARTER, 1 + QUARTER), t(1, -1), t(1, 1)
    assert_close(bco(reward, label, shift, 1.0), t(-math.log(0.75), -math.log(0.25)))
    assert_close(bco(reward, label, shift, 1.0, 2.0, 3.0), t(-2 * math.log(0.75), -3 * math.log(0.25)))
