"""The advantage of pass@k training by hand."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.pass_at_k import pass_at_k
from tests.library.by_hand import t


def test_pass_at_k() -> None:
    # Of 4 samples 1 is right. k = 2: of the 6 sets 3 pass; all 3 with the right one, 1 of 3 with a wrong one.
    group, reward = torch.zeros(4), t(1, 0, 0, 0)
    assert_close(pass_at_k(reward, group, 2), t(0.5, -1 / 6, -1 / 6, -1 / 6) / 0.5)
    assert_close(pass_at_k(reward, group, 1), t(0.75, -0.25, -0.25, -0.25) / (0.75 * 0.25) ** 0.5)
    assert_close(pass_at_k(reward, group, 9), t(0, 0, 0, 0)), "the one set of all passes"
    assert_close(pass_at_k(t(1, 1, 1, 0), group, 2), t(0, 0, 0, 0)), "every pair has a right one"
