"""The formulas of reward models by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch.testing import assert_close

from posttrain.formulas.reward import bradley_terry, centring, comparisons, demonstration_bias
from tests.library.by_hand import QUARTER, t


def test_reward_losses_by_hand() -> None:
    assert_close(bradley_terry(t(QUARTER + 0.5), t(0), 0.5), t(-math.log(0.75)))
    assert_close(centring(t(3), t(-1)), t(4))


def test_comparisons_are_all_pairs_of_an_item_without_ties() -> None:
    rank, item = torch.tensor([2, 0, 0, 1, 1, 0]), torch.tensor([5, 5, 8, 5, 8, 8])
    won, lost = comparisons(rank, item)
    assert sorted(zip(won.tolist(), lost.tolist(), strict=True)) == [(1, 0), (1, 3), (2, 4), (3, 0), (5, 4)]


def test_the_bias_brings_demonstrations_to_0() -> None:
    score = t(3, 5, 1)
    assert float((score + demonstration_bias(score)).mean()) == 0
    with pytest.raises(ValueError, match="finite scores of at least one"):
        demonstration_bias(torch.empty(0))
