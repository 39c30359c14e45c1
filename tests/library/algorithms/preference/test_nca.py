"""NCA's loss by hand."""

from __future__ import annotations

import math

from torch.testing import assert_close

from posttrain.algorithms.preference.nca import nca
from tests.library.by_hand import QUARTER, t


def test_nca() -> None:
    expected = -math.log(0.75) - 0.5 * (math.log(0.25) + math.log(0.75))
    assert_close(nca(t(QUARTER), t(-QUARTER), 1.0), t(expected))
