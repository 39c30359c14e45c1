"""CISPO by hand: its weight, its gradient and what it clips."""

from __future__ import annotations

from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.policy.cispo import CispoOptions, cispo, clipped
from posttrain.algorithms.surrogate import Tokens
from tests.library.by_hand import t, tokens

RATIO = t(0.5, 0.9, 1.5, 0.5, 1.5)


def columns(logp: Tensor) -> Tokens:
    return tokens(RATIO, t(1, 1, 1, -1, -1), logp=logp)


def test_the_weight_is_clipped_and_every_token_keeps_its_gradient() -> None:
    logp = t(-1, -2, -3, -4, -5).requires_grad_()
    surrogate = cispo(columns(logp), CispoOptions(type="cispo", high=0.2))
    assert_close(surrogate, t(-0.5, -1.8, -3.6, 2, 6))
    surrogate.sum().backward()
    assert_close(logp.grad, t(0.5, 0.9, 1.2, -0.5, -1.2))


def test_clipped_tokens_have_another_weight_than_their_ratio() -> None:
    both = clipped(columns(RATIO), CispoOptions(type="cispo", low=0.2, high=0.2))
    assert both.tolist() == [True, False, True, True, True]
    above = clipped(columns(RATIO), CispoOptions(type="cispo", high=0.2))
    assert above.tolist() == [False, False, True, False, True]
