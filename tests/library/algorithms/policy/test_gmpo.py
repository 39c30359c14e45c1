"""GMPO by hand: the geometric mean of clamped ratios."""

from __future__ import annotations

import math

import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.gmpo import GmpoOptions, clipped, gmpo
from tests.library.by_hand import t, tokens

LOG_RATIO = t(0.6, 0.2, -0.6, 0.2)
GIVEN = tokens(LOG_RATIO.exp(), t(1, 1, -1, -1), 2, 2)
OPTIONS = GmpoOptions(type="gmpo", edge=0.4)


def test_gmpo() -> None:
    up, down = math.exp((0.4 + 0.2) / 2), math.exp((-0.4 + 0.2) / 2)
    assert_close(gmpo(GIVEN, OPTIONS), t(up, up, -down, -down))


def test_clipped() -> None:
    assert clipped(GIVEN, OPTIONS).tolist() == [True, False, True, False]
    other = tokens(LOG_RATIO.exp(), torch.tensor([-1.0, 1, 1, -1]), 2, 2)
    assert not clipped(other, OPTIONS).any()
