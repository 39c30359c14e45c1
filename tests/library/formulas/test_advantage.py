from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.advantages import ADVANTAGES, Rewards, at_last_token, whiten
from posttrain.algorithms.policy.grpo import group_centred, group_zscore
from posttrain.algorithms.policy.opo import length_weighted
from posttrain.algorithms.policy.pass_at_k import pass_at_k
from posttrain.algorithms.policy.ppo import gae
from posttrain.algorithms.policy.reinforce import batch_centred
from posttrain.algorithms.policy.reinforce_pp import return_to_go
from posttrain.algorithms.policy.rloo import leave_one_out
from posttrain.formulas.ragged import Ragged


def t(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


REWARD = t(1, 0, 2, 5)
GROUP = torch.tensor([7, 7, 7, 3])
SIBLINGS = torch.tensor([7, 7, 3, 3])


def test_batch_centred() -> None:
    assert_close(batch_centred(REWARD), t(-1, -2, 0, 3))


def test_leave_one_out() -> None:
    assert_close(leave_one_out(t(1, 0, 2), torch.zeros(3)), t(0, -1.5, 1.5))


def test_group_centred_takes_groups_in_any_order() -> None:
    assert_close(group_centred(REWARD, torch.tensor([0, 9, 0, 9])), t(-0.5, -2.5, 0.5, 2.5))


def test_group_zscore_has_the_sample_deviation() -> None:
    assert_close(
        group_zscore(REWARD, SIBLINGS), t(0.5, -0.5, -1.5, 1.5) / (t(0.5**0.5, 0.5**0.5, 4.5**0.5, 4.5**0.5) + 1e-4)
    )


def test_a_group_that_agrees_has_no_advantage() -> None:
    assert_close(group_zscore(t(0.1, 0.1, 0.1), torch.zeros(3)), t(0, 0, 0), atol=0, rtol=0)


@pytest.mark.parametrize("rule", [leave_one_out, group_centred, group_zscore])
def test_a_group_of_one_is_an_error(rule: object) -> None:
    with pytest.raises(ValueError, match="group of one"):
        rule(REWARD, GROUP)  # type: ignore[operator]


def test_the_baseline_of_opo_weighs_a_reward_by_its_length() -> None:
    # 1 of 2 tokens and 0 of 6: the baseline is 2 / 8
    assert_close(length_weighted(t(1, 0, 5, 1), SIBLINGS, t(2, 6, 1, 1)), t(0.75, -0.25, 2, -2))


def test_pass_at_k_by_hand() -> None:
    # Of 4 samples 1 is right. k = 2: of the 6 sets 3 pass; all 3 with the right one, 1 of 3 with a wrong one.
    group, reward = torch.zeros(4), t(1, 0, 0, 0)
    assert_close(pass_at_k(reward, group, 2), t(0.5, -1 / 6, -1 / 6, -1 / 6) / 0.5)
    assert_close(pass_at_k(reward, group, 1), t(0.75, -0.25, -0.25, -0.25) / (0.75 * 0.25) ** 0.5)
    assert_close(pass_at_k(reward, group, 9), t(0, 0, 0, 0)), "the one set of all passes"
    assert_close(pass_at_k(t(1, 1, 1, 0), group, 2), t(0, 0, 0, 0)), "every pair has a right one"


def test_gae_by_hand() -> None:
    # Row of three: deltas 0 + .9*2 - 1 = .8, 0 + .9*3 - 2 = .7, 1 - 3 = -2; gamma lambda = .45.
    # A_3 = -2, A_2 = .7 - .9 = -.2, A_1 = .8 - .09 = .71. Row of one: 4 - 0.5 = 3.5.
    advantage, returns = gae(t(0, 0, 1, 4), t(1, 2, 3, 0.5), torch.tensor([3, 1]), gamma=0.9, lam=0.5)
    assert_close(advantage, t(0.71, -0.2, -2, 3.5))
    assert_close(returns, t(1.71, 1.8, 1, 4))


def test_gae_with_lambda_1_is_the_reward_to_come_less_the_value() -> None:
    advantage, _ = gae(t(1, 2, 4), t(5, 6, 7), torch.tensor([3]), gamma=1.0, lam=1.0)
    assert_close(advantage, t(7 - 5, 6 - 6, 4 - 7))


def test_return_to_go_is_discounted() -> None:
    assert_close(return_to_go(t(1, 2, 4, 8), torch.tensor([3, 1]), gamma=0.5), t(1 + 1 + 1, 2 + 2, 4, 8))


def test_the_outcome_sits_on_the_last_action_token() -> None:
    assert_close(at_last_token(t(3, 5, 7), torch.tensor([2, 0, 1])), t(0, 3, 7))


def test_the_reward_of_a_turn_sits_on_the_last_token_of_the_turn() -> None:
    # Two turns of two tokens that earn 1 and 2, and an outcome of 2 more: the rewards by token are 0, 1, 0, 4.
    step = Ragged(torch.tensor([4]), tokens={"turn_reward": t(0, 1, 0, 2)})
    rewards = Rewards(step, t(5), t(0, 0, 0, 0), t(0), {})
    entry = ADVANTAGES["return_to_go"]
    assert_close(entry.columns(rewards, entry.options(type="return_to_go"))["advantage"], t(5, 5, 4, 4))
    halved = entry.columns(rewards, entry.options(type="return_to_go", gamma=0.5))["advantage"]
    assert_close(halved, t(1, 2, 2, 4))


def test_whitening_counts_only_tokens_with_weight() -> None:
    # Counted 1, 2, 3: mean 2, sample deviation 1; the 100 is left out and stays 0.
    assert_close(whiten(t(1, 2, 3, 100), t(1, 1, 1, 0)), t(-1, 0, 1, 0), atol=1e-7, rtol=0)


def test_whitening_equal_advantages_gives_exactly_nothing() -> None:
    """In single precision the mean of 0.1s is not 0.1: dividing that by its own size would be noise of size 1."""
    flat = torch.full((7,), 0.1)
    assert_close(whiten(flat, torch.ones(7)), torch.zeros(7), atol=0, rtol=0)
