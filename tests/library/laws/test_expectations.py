"""Expectations by enumeration: a policy over a small vocabulary, every sample weighed by its probability."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.formulas.policy import ESTIMATORS, forward_k3, k1, k2, k3
from posttrain.formulas.ragged import Ragged

VOCABULARY = 3
LENGTH = 2
SEQUENCES = list(itertools.product(range(VOCABULARY), repeat=LENGTH))
REWARD = torch.tensor([((3 * a + 5 * b) % 7) / 3 for a, b in SEQUENCES], dtype=torch.float64)

Table = Tensor
"""Logits of the first token [V], then of the second after each first one [V, V]."""


def tables(seed: int) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randn(1 + VOCABULARY, VOCABULARY, generator=draw, dtype=torch.float64)


def logps(table: Table) -> Tensor:
    """The log-prob of each token of each sequence [S, T]."""
    log = table.log_softmax(-1)
    return torch.stack([torch.stack([log[0, a], log[1 + a, b]]) for a, b in SEQUENCES])


def expectation(probabilities: Tensor, values: Tensor) -> Tensor:
    return (probabilities * values).sum()


def true_kl(policy: Table, other: Table) -> Tensor:
    mine, theirs = logps(policy).sum(1), logps(other).sum(1)
    return expectation(mine.exp(), mine - theirs)


def by_tokens(policy: Table, other: Table, estimator: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The exact KL of each position, and the estimator's expectation there, must agree: the sum over positions."""
    return expectation(logps(policy).sum(1).exp().detach(), estimator(logps(policy), logps(other)).sum(1))


def slope(value: Tensor, table: Table) -> Tensor:
    (gradient,) = torch.autograd.grad(value, [table])
    return gradient


def kl_gap(seed: int, name: str) -> float:
    policy, ref = tables(seed), tables(seed + 100)
    return abs(float(by_tokens(policy, ref, ESTIMATORS[name]) - true_kl(policy, ref)))


def expected_gradient(
    objective: PolicyObjective, policy: Table, group: int, reward: Tensor = REWARD, sampler: Table | None = None
) -> Tensor:
    """The gradient of the loss over every group of samples, each weighed by its probability; the policy samples them.

    `sampler`: or another one does.
    """
    table = policy.clone().requires_grad_()
    rows = logps(table)
    old = logps(policy if sampler is None else sampler)
    probability = old.sum(1).exp()
    total = torch.zeros_like(policy)
    for members in itertools.product(range(len(SEQUENCES)), repeat=group):
        index = torch.tensor(members)
        step = Ragged(
            torch.full((group,), LENGTH),
            {
                "reward": reward[index],
                "group": torch.zeros(group),
                "truncated": torch.zeros(group, dtype=torch.bool),
                "fresh": torch.ones(group, dtype=torch.bool),
            },
            {"old_logp": old[index].flatten(), "step_start_logp": rows[index].detach().flatten()},
        )
        prepared = objective.prepare(step, objective.initial_state())
        logp = rows[index].flatten()
        micro = prepared.step.with_tokens(logp=logp, entropy=torch.zeros_like(logp))
        loss = objective.loss(micro, prepared.state).total
        total += probability[index].prod() * torch.autograd.grad(loss, [table], retain_graph=True)[0]
    return total


def true_gradient(policy: Table) -> Tensor:
    """The gradient of minus the expected reward."""
    table = policy.clone().requires_grad_()
    return slope(-expectation(logps(table).sum(1).exp(), REWARD), table)


def quiet(name: str, **over: object) -> PolicyObjective:
    return PolicyObjective(POLICY_ROWS[name].settings(kl="none", **over), LENGTH)


def gradient_gap(seed: int, objective: PolicyObjective, group: int, factor: float) -> float:
    policy = tables(seed)
    return float((expected_gradient(objective, policy, group) - factor * true_gradient(policy)).abs().max())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["k1", "k3"])
def test_k1_and_k3_have_the_kl_as_their_expectation(name: str, seed: int) -> None:
    assert kl_gap(seed, name) < 1e-12


@pytest.mark.parametrize("seed", range(5))
def test_the_turned_over_k3_of_some_primers_is_not_the_kl_under_the_policys_samples(seed: int) -> None:
    policy, ref = tables(seed), tables(seed + 100)
    turned = by_tokens(policy, ref, lambda logp, other: k3(other, logp))
    assert abs(float(turned - true_kl(policy, ref))) > 0.05


@pytest.mark.parametrize("seed", range(5))
def test_the_sampled_penalty_is_kl_of_old_to_new_under_the_old_policys_samples(seed: int) -> None:
    old, new = tables(seed), tables(seed + 100)
    expected = expectation(logps(old).sum(1).exp(), forward_k3(logps(new), logps(old)).sum(1))
    assert float(expected) == pytest.approx(float(true_kl(old, new)), abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_as_a_loss_k1_has_no_gradient_and_k2_has_the_kls(seed: int) -> None:
    """At one token, where the sampling distribution of later tokens plays no part."""
    logits = tables(seed)[0].clone().requires_grad_()
    ref = tables(seed + 100)[0].log_softmax(-1)
    log = logits.log_softmax(-1)
    chance = log.exp().detach()
    exact = slope((log.exp() * (log - ref)).sum(), logits)
    assert float(slope(expectation(chance, k1(logits.log_softmax(-1), ref)), logits).abs().max()) < 1e-12
    by_k2 = slope(expectation(chance, k2(logits.log_softmax(-1), ref)), logits)
    assert float((by_k2 - exact).abs().max()) < 1e-12
    by_k3 = slope(expectation(chance, k3(logits.log_softmax(-1), ref)), logits)
    forward = slope((ref.exp() * (ref - logits.log_softmax(-1))).sum(), logits)
    assert float((by_k3 - forward).abs().max()) < 1e-12, "k3's gradient is that of KL(reference || policy)"


def test_the_gradient_of_rloo_is_unbiased() -> None:
    assert gradient_gap(1, quiet("rloo"), 2, 1.0) < 1e-12


def pairwise_gap(seed: int, group: int) -> float:
    """E[gradient of p3o without a clip] over samples of another policy, against minus that of the expected reward."""
    objective = quiet("p3o", surrogate={"low": 1.0, "high": 1e6})
    policy, sampler = tables(seed), tables(seed + 100)
    gradient = expected_gradient(objective, policy, group, sampler=sampler)
    return float((gradient - true_gradient(policy)).abs().max())


@pytest.mark.parametrize("seed", range(3))
def test_the_gradient_of_p3o_is_unbiased_whoever_sampled(seed: int) -> None:
    assert pairwise_gap(seed, 2) < 1e-12


@pytest.mark.slow
def test_the_gradient_of_p3o_is_unbiased_for_larger_groups() -> None:
    assert pairwise_gap(4, 3) < 1e-12


@pytest.mark.slow
def test_a_centred_group_or_batch_shrinks_the_gradient_by_what_it_holds_of_itself() -> None:
    assert gradient_gap(2, quiet("dr_grpo"), 2, (1 - 1 / 2) / LENGTH) < 1e-12
    assert gradient_gap(2, quiet("reinforce"), 2, 1 - 1 / 2) < 1e-12


def test_a_baseline_of_earlier_batches_leaves_the_gradient_unbiased() -> None:
    objective = quiet("reinforce", advantage="moving_average")
    policy = tables(3)
    before = {"beta": 0.0, "baseline": 0.45, "baseline_weight": 0.5}
    later = Earlier(objective.config, LENGTH, before)
    assert float((expected_gradient(later, policy, 1) - true_gradient(policy)).abs().max()) < 1e-12


class Earlier(PolicyObjective):
    """An objective that begins in a later state."""

    def __init__(self, config: object, max_length: int, state: dict[str, float]) -> None:
        object.__setattr__(self, "config", config)
        object.__setattr__(self, "max_length", max_length)
        object.__setattr__(self, "begun", state)

    def initial_state(self) -> dict[str, float]:
        return dict(self.begun)  # type: ignore[attr-defined]


def truncated_likelihood_gap(seed: int, group: int) -> float:
    """E[gradient of maxrl] against the gradient of -log p truncated at order G - 1, p the chance of reward 1."""
    table = tables(seed).requires_grad_()
    right = (REWARD > 1).double()
    fail = 1 - expectation(logps(table).sum(1).exp(), right)
    expected = slope(sum(fail**k / k for k in range(1, group)), table)
    found = expected_gradient(quiet("maxrl"), tables(seed), group, right)
    return float((found - expected).abs().max())


@pytest.mark.slow
@pytest.mark.parametrize("group", [2, 3])
def test_the_gradient_of_maxrl_is_that_of_the_truncated_likelihood(group: int) -> None:
    assert truncated_likelihood_gap(5, group) < 1e-12
