"""The returns of REINFORCE++ by hand."""

from __future__ import annotations

import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.reinforce_pp import return_to_go
from tests.library.by_hand import advantage_of, rewards, t


def test_return_to_go_is_discounted() -> None:
    assert_close(return_to_go(t(1, 2, 4, 8), torch.tensor([3, 1]), gamma=0.5), t(1 + 1 + 1, 2 + 2, 4, 8))


def test_the_reward_of_a_turn_sits_on_the_last_token_of_the_turn() -> None:
    # Two turns of two tokens that earn 1 and 2, and an outcome of 2 more: the rewards by token are 0, 1, 0, 4.
    given = rewards(t(5), 4, rows={}, turn_reward=t(0, 1, 0, 2))
    assert_close(advantage_of("return_to_go", given), t(5, 5, 4, 4))
    assert_close(advantage_of("return_to_go", given, gamma=0.5), t(1, 2, 2, 4))
