"""MaxRL's advantage by hand, and the rewards that it refuses."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.policy.maxrl import over_mean
from posttrain.errors import ParamsError
from tests.library.by_hand import advantage_of, rewards, t

GROUP = torch.tensor([0, 0, 1, 1])


def test_over_mean() -> None:
    assert_close(over_mean(t(3, 1, 0, 0), GROUP), t(0.5, -0.5, 0, 0))


def test_the_entry_refuses_negative_rewards() -> None:
    assert_close(advantage_of("maxrl", rewards(t(3, 1, 0, 0), rows={"group": GROUP})), t(0.5, -0.5, 0, 0))
    with pytest.raises(ParamsError, match="a reward is -1"):
        advantage_of("maxrl", rewards(t(3, 1, 0, -1), rows={"group": GROUP}))
