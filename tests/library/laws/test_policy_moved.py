"""Laws of policy objectives on tokens that have moved."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.objective import Objective
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.algorithms.surrogate import Surrogate, Tokens
from posttrain.laws import moved
from posttrain.laws.cases import LONGEST, Shape
from posttrain.laws.examples import Miss
from posttrain.laws.policy_moved import _bare, _one_group, _respond, clip_side, importance, pull
from posttrain.settings.choices import Options

SHAPE = Shape(seed=3)
Law = Callable[[Objective, Shape], float | None]


def objective(name: str, **settings: Any) -> PolicyObjective:
    return PolicyObjective(POLICY_ROWS[name].settings(**settings), LONGEST)


class Wrong(PolicyObjective):
    """GRPO with another surrogate."""

    @property
    def surrogate(self) -> Surrogate:
        return Surrogate(Options, term, "a wrong one")


def term(tokens: Tokens, options: Options) -> torch.Tensor:
    """The square of the ratio, clipped on both sides."""
    return tokens.ratio.square().clamp(0.8, 1.2) * tokens.advantage


@pytest.mark.parametrize("law", [clip_side, importance])
def test_only_policy_objectives_move_and_on_every_third_case(law: Law) -> None:
    assert law(LikelihoodObjective(LikelihoodConfig()), SHAPE) is None
    assert law(objective("grpo"), replace(SHAPE, seed=4)) is None
    for name in ("grpo", "ppo", "gspo", "cispo", "reinforce"):
        assert law(objective(name), SHAPE) == 0.0


@pytest.mark.parametrize("law", [clip_side, importance])
def test_a_wrong_surrogate_is_found(law: Law) -> None:
    found = law(Wrong(POLICY_ROWS["grpo"].settings(), LONGEST), SHAPE)
    assert isinstance(found, Miss) and found == math.inf


def test_a_kl_pulls_to_the_reference() -> None:
    assert pull(LikelihoodObjective(LikelihoodConfig()), SHAPE) is None
    assert pull(objective("dapo"), SHAPE) is None, "it has no KL"
    for estimator in ("k2", "k3"):
        kl = {"type": "loss", "estimator": estimator, "beta": 0.1}
        assert pull(objective("grpo", kl=kl), SHAPE) == 0.0


def test_a_bare_objective_has_only_its_surrogate() -> None:
    bare = _bare(objective("ppo", entropy=0.01))
    assert (bare.config.kl.type, bare.config.entropy, bare.config.whiten) == ("none", 0.0, False)


def test_one_group_has_rows_of_one_token_without_rewards() -> None:
    case = _one_group(objective("ppo"), SHAPE)
    assert case.step.lengths_B.tolist() == [1] * moved.TOKENS
    assert not case.step.rows["reward"].any() and not case.step.tokens["old_value"].any()


def test_the_gradient_of_a_surrogate() -> None:
    case = _one_group(_bare(objective("grpo")), SHAPE)
    found = _respond(case, moved.SIGNS, torch.full_like(moved.SIGNS, 0.1))
    assert_close(found, -moved.SIGNS * math.exp(0.1) / moved.TOKENS)
