"""The policy objective by hand: weights, penalties, coefficients that move, and metrics."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import (
    PolicyObjective,
    doubling_factor,
    initial_coefficients,
    proportional_factor,
    started,
    updated_coefficients,
    updated_penalty,
)
from posttrain.formulas.ragged import Ragged
from tests.library.by_hand import t


def objective(algorithm: str = "grpo", **settings: Any) -> PolicyObjective:
    return PolicyObjective(POLICY_ROWS[algorithm].settings(**{"kl": "none", **settings}), 10)


def step(**more: torch.Tensor) -> Ragged:
    """One group of two samples, of 1 and 2 tokens, with rewards 1 and 0."""
    rows = {"reward": t(1, 0), "group": torch.zeros(2), "truncated": torch.zeros(2)}
    columns = {"old_logp": t(-1, -1, -1), "ref_logp": t(-2, -1, -1)}
    rows |= {name: value for name, value in more.items() if len(value) == 2}
    columns |= {name: value for name, value in more.items() if len(value) == 3}
    return Ragged(torch.tensor([1, 2]), rows, columns)


def with_gradients(prepared: Ragged, logp: torch.Tensor) -> Ragged:
    return prepared.with_tokens(logp=logp, entropy=t(1, 2, 3))


def test_what_it_needs() -> None:
    assert objective().needs == {"reward", "truncated", "old_logp", "entropy", "group"}
    assert objective("ppo").needs >= {"value"} and objective("gdpo").needs >= {"reward_parts"}
    assert objective("nash_md").needs >= {"opponent"}
    assert objective(correction="truncate").needs >= {"recomputed_logp"}
    penalised = objective(penalty={"type": "exact", "beta": 1.0})
    assert penalised.needs >= {"kl_old", "step_start_logp", "age"} and penalised.by_token is False
    assert objective(ptx=1.0).needs >= {"pretrain"}
    assert objective().by_token is True and objective("gspo").by_token is False
    assert objective(correction="truncate").corrected is True and objective().corrected is False


def test_a_step_of_dr_grpo() -> None:
    dr = objective(advantage="group_centred", aggregation="fixed_length", entropy=0.5)
    prepared = dr.prepare(step(), dr.initial_state())
    assert_close(prepared.step.tokens["advantage"], t(0.5, -0.5, -0.5))
    assert_close(prepared.step.tokens["weight"], t(1, 1, 1) / 20)
    assert prepared.metrics == pytest.approx({"reward": 0.5, "reward_std": 0.5**0.5, "length": 1.5, "truncated": 0.0})
    loss = dr.loss(with_gradients(prepared.step, t(-1, -1, -1)), prepared.state)
    assert float(loss.total) == pytest.approx((-0.5 + 0.5 + 0.5 - 0.5 * 6) / 20)
    found = {name: float(value) for name, value in loss.metrics.items()}
    assert found == pytest.approx(
        {"entropy": 2, "ratio": 1, "ratio_square": 1, "ratio_min": 1, "ratio_max": 1, "clip_fraction": 0, "clip_low": 0,
         "clip_high": 0, "policy_loss": float(loss.total)}
    )  # fmt: skip


def test_the_kl_in_the_loss_and_in_the_reward() -> None:
    in_loss = objective(kl={"type": "loss", "beta": 2.0, "estimator": "k2"}, aggregation="token_mean")
    prepared = in_loss.prepare(step(), in_loss.initial_state())
    assert prepared.metrics["beta"] == 2.0
    loss = in_loss.loss(with_gradients(prepared.step, t(-1, -1, -1)), prepared.state)
    assert float(loss.metrics["kl_k2"]) == pytest.approx(0.5 / 3)
    advantage = prepared.step.tokens["advantage"]
    assert float(loss.total) == pytest.approx(float((2 * t(0.5, 0, 0) - advantage).sum()) / 3)
    kl = {"type": "reward_sequence", "beta": 0.5, "estimator": "k1"}
    in_reward = objective("rloo", kl=kl)
    prepared = in_reward.prepare(step(), in_reward.initial_state())
    assert_close(prepared.step.tokens["advantage"], t(0.5, -0.5, -0.5))  # the first reward is 1 - 0.5 * 1


def test_a_critic_adds_its_loss() -> None:
    ppo = objective("ppo", advantage={"type": "outcome_value", "value_coef": 2.0, "value_clip": None}, whiten=False,
                    kl="none", aggregation="token_mean")  # fmt: skip
    prepared = ppo.prepare(step(old_value=t(0, 0, 0)), ppo.initial_state())
    given = with_gradients(prepared.step, t(-1, -1, -1)).with_tokens(value=t(0, 0, 3))
    loss = ppo.loss(given, prepared.state)
    assert float(loss.metrics["value_loss"]) == pytest.approx(0.5 * (1 + 0 + 9) / 3)
    assert float(loss.total) == pytest.approx(-1 / 3 + 2 * 0.5 * 10 / 3)


@pytest.mark.parametrize(
    ("values", "explained"),
    [((1, 0, 0), 1.0), ((0, 0, 0), 0.0), ((5, 5, 5), 0.0), ((0.5, 0, 0), 0.75), ((-1, 0, 0), -3.0)],
)
def test_the_share_of_the_returns_that_the_critic_explains(values: tuple[float, ...], explained: float) -> None:
    """Of the returns 1, 0, 0: all of it, nothing by a constant guess, and less than nothing by the opposite."""
    ppo = objective("ppo", advantage={"type": "outcome_value", "value_clip": None}, whiten=True, kl="none")
    prepared = ppo.prepare(step(old_value=t(*values)), ppo.initial_state())
    assert prepared.metrics["explained_variance"] == pytest.approx(explained)


def test_returns_that_differ_only_by_rounding_have_no_variance_to_explain() -> None:
    """Each return of GAE is advantage + value, so returns of 1 are 1 and 1 + 1e-16."""
    ppo = objective("ppo", advantage={"type": "gae", "lam": 1.0, "value_clip": None}, kl="none")
    given = step(old_value=t(-1.37, -7.53, -1.6), reward=t(1, 1))
    returns_N = (prepared := ppo.prepare(given, ppo.initial_state())).step.tokens["return"]
    assert 0 < float(returns_N.std()) < 1e-6
    assert prepared.metrics["explained_variance"] == 0.0


def test_a_critic_far_off_explains_minus_1000_at_the_least() -> None:
    """Values of 0, 100 and -100 leave 30,000 times the variance of the returns 1, 0, 0. Rounding would decide."""
    ppo = objective("ppo", advantage={"type": "outcome_value", "value_clip": None}, kl="none")
    prepared = ppo.prepare(step(old_value=t(0, 100, -100)), ppo.initial_state())
    assert prepared.metrics["explained_variance"] == -1000.0


def test_text_adds_its_likelihood() -> None:
    ptx = objective("rloo", ptx=3.0, kl="none")
    rows = {"reward": t(1, 0, 0), "group": t(0, 0, 0), "truncated": t(0, 0, 0), "pretrain": torch.tensor([0, 0, 1])}
    given = Ragged(torch.tensor([1, 1, 2]), rows, {"old_logp": t(-1, -1, 0, 0)})
    prepared = ptx.prepare(given, ptx.initial_state())
    assert_close(prepared.step.tokens["ptx_weight"], t(0, 0, 0.5, 0.5))
    columns = {"logp": t(-1, -1, -2, -4), "entropy": t(0, 0, 0, 0)}
    loss = ptx.loss(prepared.step.with_tokens(**columns), prepared.state)
    assert float(loss.metrics["ptx_loss"]) == pytest.approx(3)
    assert float(loss.total - loss.metrics["policy_loss"]) == pytest.approx(9)


def test_truncated_rows_and_empty_rows_have_no_weight() -> None:
    masked = objective(truncated="mask", aggregation="token_mean")
    prepared = masked.prepare(step(truncated=t(0, 1)), masked.initial_state())
    assert_close(prepared.step.tokens["weight"], t(1, 0, 0))
    rows = {"reward": t(1, 0, 5), "group": t(0, 0, 0), "truncated": t(0, 0, 0)}
    empty = Ragged(torch.tensor([1, 1, 0]), rows, {"old_logp": t(-1, -1)})
    centred = objective(advantage="group_centred")
    assert_close(centred.prepare(empty, {"beta": 0.0}).step.tokens["advantage"], t(0.5, -0.5))


def test_a_corrected_sampler_and_given_advantages() -> None:
    corrected = objective(correction={"type": "truncate", "high": 2.0}, aggregation="token_mean")
    given = step(recomputed_logp=t(-1, -1, -1 + math.log(4))).with_tokens(advantage=t(1, 1, 1))
    prepared = corrected.prepare_given(given, corrected.initial_state())
    assert_close(prepared.step.tokens["correction"], t(1, 1, 2))
    loss = corrected.loss(with_gradients(prepared.step, given.tokens["recomputed_logp"]), prepared.state)
    assert float(loss.total) == pytest.approx(-4 / 3) and float(loss.metrics["correction"]) == pytest.approx(4 / 3)


def test_the_penalty_on_the_kl_to_the_sampler() -> None:
    sampled = objective(penalty={"type": "sampled", "beta": 0.5}, aggregation="token_mean")
    prepared = sampled.prepare(step(step_start_logp=t(-1, -1, -1), age=t(0, 0)), sampled.initial_state())
    assert prepared.metrics["penalty"] == 0.5
    loss = sampled.loss(with_gradients(prepared.step, t(0, -1, -1)), prepared.state)
    assert float(loss.metrics["kl_old"]) == pytest.approx((math.e - 2) / 3)


def test_coefficients() -> None:
    target = objective("rloo", kl={"type": "reward_sequence", "beta": 0.1, "target": 2.0, "horizon": 4}).config
    assert initial_coefficients(target) == {"beta": 0.1, "next_beta": 0.1}
    assert started(target, {"beta": 0.1, "next_beta": 0.2}) == {"beta": 0.2, "next_beta": 0.2}
    moved = updated_coefficients(target, step(fresh=torch.tensor([1, 1]).bool()), t(-1, -1, -1), {"beta": 0.1})
    assert moved["next_beta"] == pytest.approx(0.1 * (1 - 0.2 * 0.5))  # a KL of 0.5 a row is far below 2
    line = objective("rloo", kl={"type": "reward_sequence", "beta": 0.4, "end": 0.0, "steps": 4}).config
    assert initial_coefficients(line) == {"beta": 0.4, "step": 0.0, "next_step": 0.0}
    begun = started(line, {"beta": 0.4, "step": 0.0, "next_step": 1.0})
    assert begun == pytest.approx({"beta": 0.3, "step": 1.0, "next_step": 1.0})
    assert updated_coefficients(line, step(), t(-1, -1, -1), begun)["next_step"] == 2.0
    average = objective("reinforce", advantage={"type": "moving_average", "decay": 0.5}, kl="none").config
    state = initial_coefficients(average)
    assert state == {"beta": 0.0, "baseline": 0.0, "baseline_weight": 0.0}
    given = step(penalised_reward=t(3, 1), fresh=torch.tensor([1, 1]).bool())
    found = updated_coefficients(average, given, t(-1, -1, -1), state)
    assert found == {"beta": 0.0, "baseline": 1.0, "baseline_weight": 0.5}


def test_the_penalty_follows_its_target() -> None:
    knobs = objective(penalty={"type": "sampled", "beta": 0.5, "target": 0.1}).config
    state = initial_coefficients(knobs)
    assert state == {"beta": 0.0, "penalty": 0.5, "last_kl_old": 0.0}
    fresh = step(step_start_logp=t(-1, -1, -1), age=t(0, 0))
    assert updated_penalty(knobs, fresh, t(-1, -1, -1), state) == state
    reused = step(step_start_logp=t(0, 0, 0), age=t(1, 1))
    kept = updated_penalty(knobs, reused, t(-1, -1, -1), state)
    assert kept["last_kl_old"] == pytest.approx(math.e - 2)
    assert updated_penalty(knobs, fresh, t(-1, -1, -1), kept) == {"beta": 0.0, "penalty": 1.0, "last_kl_old": 0.0}
    assert updated_penalty(objective().config, fresh, t(-1, -1, -1), {"a": 1.0}) == {"a": 1.0}


def test_factors() -> None:
    assert proportional_factor(3.0, 2.0, 5, 10) == pytest.approx(1.1)
    assert proportional_factor(2.2, 2.0, 50, 10) == pytest.approx(1.1)
    assert [doubling_factor(kl, 1.0) for kl in (2.0, 1.0, 0.5)] == [2.0, 1.0, 0.5]
