"""SimPO's loss by hand."""

from __future__ import annotations

import math

from torch.testing import assert_close

from posttrain.algorithms.preference.simpo import simpo
from tests.library.by_hand import QUARTER, t


def test_simpo() -> None:
    assert_close(simpo(t(2), t(-1), 2 * QUARTER / 3, QUARTER), t(-math.log(0.75)))
