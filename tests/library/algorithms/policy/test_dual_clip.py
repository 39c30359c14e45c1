"""Dual clip by hand: PPO's clip, and the floor of bad tokens."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.policy.dual_clip import DualClipOptions, clipped, dual_clip
from tests.library.by_hand import t, tokens

GIVEN = tokens(t(0.5, 1.5, 4, 0.5, 1.5, 4), t(1, 1, 1, -1, -1, -1))
OPTIONS = DualClipOptions(type="dual_clip", low=0.2, high=0.2, floor=3.0)


def test_dual_clip() -> None:
    assert_close(dual_clip(GIVEN, OPTIONS), t(0.5, 1.2, 1.2, -0.8, -1.5, -3))


def test_clipped() -> None:
    assert clipped(GIVEN, OPTIONS).tolist() == [False, True, True, True, False, True]
