"""TRPO: a natural gradient step within the trust region."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.testing import assert_close

from posttrain.algorithms.policy_config import TrpoOptions
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.models.device import DeviceParams, Runtime
from posttrain.online.trpo import Trpo, TrustRegion, _dot, trpo_refusal
from posttrain.rollout import token_rows
from posttrain.train.loop import TrainingParams, adamw
from posttrain.train.model_set import ModelSet
from posttrain.train.step import StepClosure, make_batch
from tests.library.models.tiny import random_rows, tiny_model

CPU = Runtime(DeviceParams(device="cpu", threads=1), fused=False)


def closure() -> StepClosure:
    objective, batch = LikelihoodObjective(LikelihoodConfig()), make_batch(token_rows(*random_rows(4)))
    prepared = batch.with_prepared(objective.prepare(batch.columns, {}).step)
    return StepClosure(objective, ModelSet(tiny_model(), CPU), prepared)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, None),
        ({"activations": "recompute"}, "activations = recompute: update trpo differentiates twice, which needs all"),
        ({"compile": True}, "compile = true: update trpo differentiates twice, which compiled layers do not support"),
        ({"device": {"device": "cpu", "precision": "bf16"}}, "device.precision = bf16: update trpo solves"),
        ({"optimizer": {"matrices": "muon"}}, "optimizer.average and matrices: update trpo computes its own step"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], reason: str | None) -> None:
    found = trpo_refusal(TrainingParams(**settings))
    assert found is None if reason is None else found is not None and found.startswith(reason)
    assert found is None or found.endswith((". Use keep", ". Remove it", ". Use fp32 or auto", ". Remove them"))
    with_critic = TrainingParams.model_construct(
        **{**dict(TrainingParams()), "optimizer": TrainingParams().optimizer.model_copy(update={"critic_first": 0.5})}
    )
    assert trpo_refusal(with_critic) == "optimizer.critic_first: update trpo moves the policy in each step. Remove it"


def test_the_divergence_from_the_start_of_the_step_and_its_curvature() -> None:
    one = closure()
    region = TrustRegion(one)
    policy = one.models.policy
    assert region.kl() == pytest.approx(0, abs=1e-6)
    draw = torch.Generator().manual_seed(0)
    vector = [1e-2 * torch.randn(part.shape, generator=draw) for part in policy.parameters()]
    curved = float(_dot(vector, region.kl_gradient_product(vector)))
    with torch.no_grad():
        for part, change in zip(policy.parameters(), vector, strict=True):
            part.add_(0.1 * change)
    assert region.kl() == pytest.approx(0.01 * curved / 2, rel=0.1), "KL of a small step is s F s / 2"


def test_a_step_lowers_the_loss_within_the_region() -> None:
    one = closure()
    before = one.loss()
    options = TrpoOptions(type="trpo", delta=0.01)
    metrics = Trpo(one.models.policy, options).step(one, 0.0)
    assert one.loss() < before == pytest.approx(metrics["loss"], rel=1e-4)
    assert 0 < metrics["trust_kl"] <= 0.01 and 0 < metrics["step_share"] <= 1 and metrics["grad_norm"] > 0
    assert {"trust_kl", "step_share", "loss", "entropy"} <= metrics.keys()


def test_a_region_that_allows_no_step_leaves_the_policy() -> None:
    one = closure()
    before = [part.clone() for part in one.models.policy.parameters()]
    rule = Trpo(one.models.policy, TrpoOptions(type="trpo"))
    blocked = TrustRegion(one)
    blocked.kl = lambda: 1e9  # type: ignore[method-assign]
    change = [torch.ones_like(part) for part in before]
    assert rule._search(one, blocked, change) == {"trust_kl": 0.0, "step_share": 0.0}
    assert all(torch.equal(*pair) for pair in zip(before, one.models.policy.parameters(), strict=True))


def test_without_a_gradient_there_is_no_step() -> None:
    one = closure()
    rule = Trpo(one.models.policy, TrpoOptions(type="trpo"))

    class Still(StepClosure):
        def __call__(self) -> dict[str, float]:
            return {"loss": 1.0}

    still = Still(one.objective, one.models, one.batch)
    assert rule.step(still, 0.0) == {"loss": 1.0, "grad_norm": 0.0, "trust_kl": 0.0, "step_share": 0.0}


class Quadratic:
    """A region whose curvature is a diagonal."""

    def kl_gradient_product(self, vector: list[torch.Tensor]) -> list[torch.Tensor]:
        return [torch.tensor([1.0, 4.0]) * vector[0]]


def test_conjugate_gradients_solve_the_damped_system() -> None:
    rule = Trpo(tiny_model(), TrpoOptions(type="trpo", damping=0.5, iterations=10))
    region: Any = Quadratic()
    assert_close(rule._damped(region, [torch.tensor([2.0, 2.0])])[0], torch.tensor([3.0, 9.0]))
    assert_close(rule._solve(region, [torch.tensor([3.0, 9.0])])[0], torch.tensor([2.0, 2.0]))
    assert float(_dot([torch.tensor([1.0, 2.0])], [torch.tensor([3.0, 4.0])])) == 11.0


def test_the_state_is_the_critic_s() -> None:
    policy, critic = tiny_model(), tiny_model(1)
    assert Trpo(policy, TrpoOptions(type="trpo")).state_dict() == {}
    optimizer = adamw({"critic": critic}, TrainingParams(optimizer={"lr": 1e-3}), 4, policy)  # type: ignore[arg-type]
    rule = Trpo(policy, TrpoOptions(type="trpo"), optimizer)
    assert rule.state_dict().keys() == optimizer.state_dict().keys()
    rule.load_state_dict(optimizer.state_dict())
