"""Rows that compare samples with each other: AOT's sorting is optimal transport, P3O's two samples are the paper's."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from torch.testing import assert_close

from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS, PreferenceConfig
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import Case, Shape, build, run

BETA = 0.1
AOT = ("aot", "aot_unpaired")


def begun(objective: PreferenceObjective | PolicyObjective, shape: Shape) -> Case:
    """A step at its start: what is sorted are the policy's own log-probs."""
    case = build(objective, shape)
    return replace(case, step=case.step.with_tokens(step_start_logp=case.leaves["logp"]))


def sides(case: Case, logp: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The two sides that the paper sorts: margins of the policy and the reference, or chosen and rejected answers."""
    step = case.step
    first = step.rows["side"] > 0
    order = step.items.argsort(stable=True)
    chosen, rejected = order[first[order]], order[~first[order]]
    policy, reference = step.sum_rows(logp), step.sum_rows(step.tokens["ref_logp"])
    if name == "aot":
        return policy[chosen] - policy[rejected], reference[chosen] - reference[rejected]
    return policy[chosen] - reference[chosen], policy[rejected] - reference[rejected]


def costs(case: Case, logp: Tensor, name: str, beta: float = BETA) -> dict[Sequence[int], Tensor]:
    """The mean cost of every way to pair the sides."""
    more, less = sides(case, logp, name)
    ways = itertools.permutations(range(len(more)))
    return {way: -logsigmoid(beta * (more - less[list(way)])).mean() for way in ways}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", AOT)
def test_aot_is_the_cheapest_of_all_ways_to_pair_the_sides(name: str, seed: int) -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS[name].settings(loss={"type": name, "beta": 2.0}))
    case = begun(objective, Shape(seed, groups=3, size=2))
    found = costs(case, case.leaves["logp"], name, beta=2.0)
    outcome = run(case)
    assert_close(outcome.loss, min(found.values()))
    assert max(found.values()) > outcome.loss + 1e-3
    logp = case.leaves["logp"].clone().requires_grad_()
    cheapest = costs(case, logp, name, beta=2.0)[min(found, key=lambda way: float(found[way]))]
    assert_close(outcome.gradients["logp"], torch.autograd.grad(cheapest, logp)[0])


@pytest.mark.parametrize("name", AOT)
def test_who_is_paired_with_whom_matters_to_dpo_and_not_to_aot_unpaired(name: str) -> None:
    """Rejected answers change their pairs: the answers are the same ones, and so are the sides of `aot_unpaired`."""
    case = begun(PreferenceObjective(PREFERENCE_ROWS[name].settings()), Shape(3))
    step = case.step
    rejected = (step.rows["side"] < 0).nonzero().squeeze(1)
    item_B = step.items.clone()
    item_B[rejected] = item_B[rejected].roll(1)
    others = replace(case, step=replace(step, item_B=item_B))
    one, other = run(case), run(others)
    same = torch.equal(one.gradients["logp"], other.gradients["logp"])
    assert same == (name == "aot_unpaired")
    dpo = replace(case, objective=PreferenceObjective(PREFERENCE_ROWS["dpo"].settings()))
    changed = replace(others, objective=dpo.objective)
    assert not torch.equal(run(dpo).gradients["logp"], run(changed).gradients["logp"])


def test_one_pair_has_nothing_to_be_sorted_with() -> None:
    case = begun(
        PreferenceObjective(PREFERENCE_ROWS["dpo"].settings(loss={"type": "dpo", "beta": BETA})), Shape(1, 1, 1)
    )
    expected = run(case)
    for name in AOT:
        objective = PreferenceObjective(PREFERENCE_ROWS[name].settings())
        found = run(begun(objective, Shape(1, 1, 1)))
        assert_close(found.loss, expected.loss)
        assert_close(found.gradients["logp"], expected.gradients["logp"])


def test_aot_needs_a_reference() -> None:
    with pytest.raises(ValueError, match=r"aot sorts log-probs relative to a reference. Use reference true"):
        PreferenceConfig.model_validate({"loss": "aot", "reference": False})


def pair(reward: tuple[float, float], moved: float) -> tuple[Ragged, Tensor]:
    """Two samples of one prompt of 3 and 2 tokens, and the policy's log-probs, which have moved from the sampler's."""
    draw = torch.Generator().manual_seed(0)
    old = -torch.rand(5, generator=draw, dtype=torch.float64)
    logp = old + moved * torch.randn(5, generator=draw, dtype=torch.float64)
    rows = {"reward": torch.tensor(reward, dtype=torch.float64), "group": torch.zeros(2), "truncated": torch.zeros(2)}
    return Ragged(torch.tensor([3, 2]), rows, {"old_logp": old, "step_start_logp": logp}), logp


def gradient_of(objective: PolicyObjective, step: Ragged, logp: Tensor) -> tuple[Tensor, Tensor]:
    """The loss and its gradient by the log-probs."""
    leaves = {"logp": logp.clone().requires_grad_(), "entropy": torch.zeros_like(logp)}
    prepared = objective.prepare(step, objective.initial_state())
    loss = objective.loss(prepared.step.with_tokens(**leaves), prepared.state).total
    return loss.detach(), torch.autograd.grad(loss, leaves["logp"])[0]


def p3o(**over: object) -> PolicyObjective:
    return PolicyObjective(POLICY_ROWS["p3o"].settings(kl="none", **over), 9)


@pytest.mark.parametrize("moved", [0.0, 0.1, 0.6])
@pytest.mark.parametrize("reward", [(1.0, 0.0), (0.2, 0.7), (0.5, 0.5)])
def test_two_samples_are_clipped_one_by_one_as_the_paper_says(reward: tuple[float, float], moved: float) -> None:
    """-1/2 sum_i min(d_i s_i, d_i clip(s_i)), d_i = sg((R_i - R_j) s_j), s the ratios of whole sequences."""
    step, logp = pair(reward, moved)
    leaf = logp.clone().requires_grad_()
    ratio = torch.stack([part.sum() for part in (leaf - step.tokens["old_logp"]).split([3, 2])]).exp()
    apart = (step.rows["reward"] - step.rows["reward"].flip(0)) * ratio.flip(0).detach()
    expected = -0.5 * torch.minimum(apart * ratio, apart * ratio.clamp(0.8, 1.2)).sum()
    loss, gradient = gradient_of(p3o(), step, logp)
    assert_close(loss, expected.detach())
    assert_close(gradient, torch.autograd.grad(expected, leaf)[0])


def test_a_prompt_whose_rewards_are_all_higher_teaches_the_same() -> None:
    for moved in (0.0, 0.6):
        plain, shifted = (gradient_of(p3o(), *pair(reward, moved)) for reward in ((1.0, 0.25), (8.0, 7.25)))
        assert_close(plain, shifted, atol=1e-12, rtol=0)


def test_its_first_update_is_rloos() -> None:
    shape = Shape(5, groups=2, size=4)
    rows: list[Callable[[], PolicyObjective]] = [
        p3o,
        lambda: PolicyObjective(POLICY_ROWS["rloo"].settings(kl="none"), 9),
    ]
    gradients = []
    for objective in rows:
        case = build(objective(), shape)
        same = {name: case.leaves["logp"] for name in ("old_logp", "step_start_logp") if name in case.step.tokens}
        gradients.append(run(replace(case, step=case.step.with_tokens(**same))).gradients["logp"])
    assert_close(*gradients)


def test_it_is_summed_over_a_sequence_alone() -> None:
    with pytest.raises(
        ValueError, match=r"its weight would depend on the answer's length. Use aggregation sequence_sum"
    ):
        PolicyConfig.model_validate({"surrogate": "p3o"})
