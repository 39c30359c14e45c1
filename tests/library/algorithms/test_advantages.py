"""What several advantages share, by hand: sums of groups, outcomes by token, whitening, the baseline."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.advantages import (
    at_last_token,
    baseline,
    by_token,
    check_group_size,
    group_range,
    group_sums,
    whiten,
)
from tests.library.by_hand import advantage_of, rewards, t


def test_groups() -> None:
    group = torch.tensor([9, 4, 9])
    sums, counts = group_sums(t(1, 2, 5), group)
    assert_close((sums, counts), (t(6, 2, 6), t(2, 1, 2)))
    assert_close(group_range(t(1, 2, 5), group), t(4, 0, 4))
    with pytest.raises(ValueError, match="mine: each group needs at least two samples"):
        check_group_size(counts, "mine")


def test_the_outcome_sits_on_the_last_action_token() -> None:
    assert_close(at_last_token(t(3, 5, 7), torch.tensor([2, 0, 1])), t(0, 3, 7))


def test_rewards_by_token() -> None:
    given = replace(rewards(t(5), 4, rows={}), kl_penalty_N=t(0.5, 0, 0, 0.25))
    assert_close(by_token(given), t(-0.5, 0, 0, 4.75))
    earned = rewards(t(5), 4, rows={}, turn_reward=t(0, 1, 0, 2))
    assert_close(by_token(earned), t(0, 1, 0, 4))


def test_penalised_rewards_and_an_advantage_of_a_group() -> None:
    given = replace(rewards(t(5, 1), rows={"group": torch.zeros(2)}), kl_penalty_B=t(2, 0))
    assert_close(given.penalised, t(3, 1))
    assert_close(advantage_of("group_centred", given), t(1, -1))


def test_the_baseline_is_corrected_for_its_start() -> None:
    assert baseline({"baseline": 0.3, "baseline_weight": 0.1}, t(7)) == pytest.approx(3)
    assert baseline({"baseline": 0.0, "baseline_weight": 0.0}, t(7, 9)) == 8


def test_whitening_counts_only_tokens_with_weight() -> None:
    # Counted 1, 2, 3: mean 2, sample deviation 1; the 100 is left out and stays 0.
    assert_close(whiten(t(1, 2, 3, 100), t(1, 1, 1, 0)), t(-1, 0, 1, 0), atol=1e-7, rtol=0)


def test_whitening_equal_advantages_gives_exactly_nothing() -> None:
    """In single precision the mean of 0.1s is not 0.1: dividing that by its own size would be noise of size 1."""
    flat = torch.full((7,), 0.1)
    assert_close(whiten(flat, torch.ones(7)), torch.zeros(7), atol=0, rtol=0)
