"""ORPO's loss by hand, and its log-odds near certainty."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.preference.orpo import log_odds, orpo
from tests.library.by_hand import QUARTER, t


def test_orpo() -> None:
    high, low = t(math.log(0.75)), t(math.log(0.5))  # odds 3 and 1
    assert_close(log_odds(high), t(QUARTER))
    assert_close(orpo(high, low, 0.5), t(-0.5 * math.log(0.75)))


@pytest.mark.parametrize("m", [0.0, -1e-12, -1e-3, -0.6931, -0.7, -80.0, -1e4])
def test_log_odds_and_their_slope_are_finite_everywhere(m: float) -> None:
    moving = torch.tensor([m], requires_grad=True)
    log_odds(moving).sum().backward()
    assert bool(log_odds(moving).isfinite().all())
    assert moving.grad is not None
    assert bool(moving.grad.isfinite().all())
