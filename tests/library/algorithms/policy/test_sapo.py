"""SAPO by hand: its value and its slope at ratio 1."""

from __future__ import annotations

from torch.testing import assert_close

from posttrain.algorithms.policy.sapo import SapoOptions, sapo
from tests.library.by_hand import QUARTER, t, tokens

OPTIONS = SapoOptions(type="sapo", tau_pos=2.0, tau_neg=4.0)


def test_sapo() -> None:
    given = tokens(t(1 + QUARTER / 2, 1 + QUARTER / 4), t(3, -3))
    assert_close(sapo(given, OPTIONS), t(4 / 2 * 0.75 * 3, 4 / 4 * 0.75 * -3))


def test_the_slope_at_ratio_1_is_the_advantage() -> None:
    ratio = t(1, 1).requires_grad_()
    sapo(tokens(ratio, t(3, -3)), OPTIONS).sum().backward()
    assert_close(ratio.grad, t(3, -3))
