"""DPO's loss by hand, with and without label smoothing."""

from __future__ import annotations

import math

from torch.testing import assert_close

from posttrain.algorithms.preference.dpo import dpo
from tests.library.by_hand import QUARTER, t


def test_dpo() -> None:
    beta = QUARTER / 3  # h - l = 3, so sigmoid(beta (h - l)) is 3 / 4
    assert_close(dpo(t(2), t(-1), beta), t(-math.log(0.75)))
    assert_close(dpo(t(2), t(-1), beta, 0.1), t(-0.9 * math.log(0.75) - 0.1 * math.log(0.25)))
