"""OPO's baseline by hand."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.opo import length_weighted
from tests.library.by_hand import t


def test_the_baseline_weighs_a_reward_by_its_length() -> None:
    # 1 of 2 tokens and 0 of 6: the baseline is 2 / 8
    assert_close(length_weighted(t(1, 0, 5, 1), torch.tensor([7, 7, 3, 3]), t(2, 6, 1, 1)), t(0.75, -0.25, 2, -2))
