"""GRPO's advantages by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.policy.grpo import group_centred, group_zscore
from tests.library.by_hand import t

REWARD = t(1, 0, 2, 5)


def test_group_centred_takes_groups_in_any_order() -> None:
    assert_close(group_centred(REWARD, torch.tensor([0, 9, 0, 9])), t(-0.5, -2.5, 0.5, 2.5))


def test_group_zscore_has_the_sample_deviation() -> None:
    spread = t(0.5**0.5, 0.5**0.5, 4.5**0.5, 4.5**0.5) + 1e-4
    assert_close(group_zscore(REWARD, torch.tensor([7, 7, 3, 3])), t(0.5, -0.5, -1.5, 1.5) / spread)


def test_a_group_that_agrees_has_no_advantage() -> None:
    assert_close(group_zscore(t(0.1, 0.1, 0.1), torch.zeros(3)), t(0, 0, 0), atol=0, rtol=0)


@pytest.mark.parametrize("rule", [group_centred, group_zscore])
def test_a_group_of_one_is_an_error(rule: Callable[[Tensor, Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="at least two samples"):
        rule(REWARD, torch.tensor([7, 7, 7, 3]))
