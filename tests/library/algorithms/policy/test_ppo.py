"""PPO by hand: the clip, its edges, and the advantages of a critic."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.advantages import ADVANTAGES
from posttrain.algorithms.policy.ppo import ClipOptions, clipped, gae, lowest, outside, ppo_clip, term
from tests.library.by_hand import advantage_of, rewards, t, tokens

RATIO = t(0.5, 0.9, 1.5, 0.5, 1.5)
ADVANTAGE = t(1, 1, 1, -1, -1)
CUT = [False, False, True, True, False]
OPTIONS = ClipOptions(type="ppo_clip", low=0.2, high=0.28)


def test_the_clip_and_what_it_cuts() -> None:
    expected = t(0.5, 0.9, 1.28, -0.8, -1.5)
    assert_close(ppo_clip(RATIO, ADVANTAGE, 0.2, 0.28), expected)
    assert_close(term(tokens(RATIO, ADVANTAGE), OPTIONS), expected)
    assert outside(RATIO, ADVANTAGE, 0.2, 0.28).tolist() == CUT
    assert clipped(tokens(RATIO, ADVANTAGE), OPTIONS).tolist() == CUT


def test_the_clip_cuts_exactly_those_gradients() -> None:
    moving = RATIO.clone().requires_grad_()
    ppo_clip(moving, ADVANTAGE, 0.2, 0.28).sum().backward()
    assert moving.grad is not None
    assert (moving.grad == 0).tolist() == CUT


def test_edges() -> None:
    assert (lowest(None), lowest(0.2)) == (0.0, 0.8)
    assert OPTIONS.high == 0.28
    with pytest.raises(ValueError, match=r"edge 1 \+ high at 0.5"):
        ClipOptions(type="ppo_clip", high=-0.5)


def test_gae_by_hand() -> None:
    # Row of three: deltas 0 + .9*2 - 1 = .8, 0 + .9*3 - 2 = .7, 1 - 3 = -2; gamma lambda = .45.
    # A_3 = -2, A_2 = .7 - .9 = -.2, A_1 = .8 - .09 = .71. Row of one: 4 - 0.5 = 3.5.
    advantage, returns = gae(t(0, 0, 1, 4), t(1, 2, 3, 0.5), torch.tensor([3, 1]), gamma=0.9, lam=0.5)
    assert_close(advantage, t(0.71, -0.2, -2, 3.5))
    assert_close(returns, t(1.71, 1.8, 1, 4))


def test_gae_with_lambda_1_is_the_reward_to_come_less_the_value() -> None:
    advantage, _ = gae(t(1, 2, 4), t(5, 6, 7), torch.tensor([3]), gamma=1.0, lam=1.0)
    assert_close(advantage, t(7 - 5, 6 - 6, 4 - 7))


def test_the_entries_of_a_critic() -> None:
    given = rewards(t(1, 4), 3, 1, rows={}, old_value=t(1, 2, 3, 0.5))
    entry = ADVANTAGES["gae"]
    found = entry.columns(given, entry.options(type="gae", gamma=0.9, lam=0.5, value_lam=1.0))
    assert_close(found["advantage"], t(0.71, -0.2, -2, 3.5))
    assert_close(found["return"], t(0.81, 0.9, 1, 4))  # discounted rewards to come
    penalised = replace(given, kl_penalty_B=t(0.5, 0))
    assert_close(advantage_of("outcome_value", penalised), t(0.5 - 1, 0.5 - 2, 0.5 - 3, 4 - 0.5))
