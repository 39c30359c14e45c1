"""REINFORCE by hand, and its two baselines."""

from __future__ import annotations

from dataclasses import replace

from torch.testing import assert_close

from posttrain.algorithms.policy.reinforce import batch_centred, reinforce
from posttrain.settings.choices import Options
from tests.library.by_hand import advantage_of, rewards, t, tokens

REWARD = t(1, 0, 2, 5)


def test_reinforce() -> None:
    assert_close(reinforce(tokens(t(1, 1), t(2, -3), logp=t(-1, -2)), Options(type="reinforce")), t(-2, 6))


def test_batch_centred() -> None:
    assert_close(batch_centred(REWARD), t(-1, -2, 0, 3))
    penalised = replace(rewards(REWARD, rows={}), kl_penalty_B=t(1, 0, 1, 2))
    assert_close(advantage_of("batch_centred", penalised), t(0, 0, 1, 3) - 1)


def test_the_moving_average_is_corrected_for_its_start() -> None:
    given = replace(rewards(REWARD, rows={}), state={"baseline": 0.3, "baseline_weight": 0.1})
    assert_close(advantage_of("moving_average", given), REWARD - 3)
