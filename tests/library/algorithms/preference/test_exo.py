"""EXO's loss by hand: 0 where the policy agrees with the labels."""

from __future__ import annotations

import math

from torch.testing import assert_close

from posttrain.algorithms.preference.exo import exo
from tests.library.by_hand import QUARTER, t


def test_exo() -> None:
    assert_close(exo(t(2), t(-1), QUARTER / 3, 0.25), t(0))
    expected = 0.75 * math.log(1.5) + 0.25 * math.log(0.5)
    assert_close(exo(t(2), t(-1), QUARTER / 3, 0.5 - 1e-9), t(expected), atol=1e-8, rtol=0)
