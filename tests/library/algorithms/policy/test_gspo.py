"""The ratio of GSPO-token: the sequence's in value, the token's in gradient."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.gspo import per_token_ratio
from tests.library.by_hand import t


def test_per_token_ratio() -> None:
    logp = t(-1, -2, -3).requires_grad_()
    found = per_token_ratio(logp, t(-1.5, -1, -3), torch.tensor([2, 1]))
    assert_close(found, t(-0.25, -0.25, 0))
    (found * t(1, 2, 3)).sum().backward()
    assert_close(logp.grad, t(1, 2, 3))
