"""The loss of robust DPO by hand."""

from __future__ import annotations

import math

from torch.testing import assert_close

from posttrain.algorithms.preference.robust_dpo import robust_dpo
from tests.library.by_hand import QUARTER, t


def test_robust_dpo() -> None:
    expected = (-0.9 * math.log(0.75) + 0.1 * math.log(0.25)) / 0.8
    assert_close(robust_dpo(t(2), t(-1), QUARTER / 3, 0.1), t(expected))
