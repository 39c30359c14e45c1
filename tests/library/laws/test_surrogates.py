"""What is particular to single surrogates and advantages, by hand or against each other."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.advantages import ADVANTAGES
from posttrain.algorithms.policy import sapo
from posttrain.algorithms.policy.gdpo import decoupled
from posttrain.algorithms.policy.grpo import group_zscore
from posttrain.algorithms.policy.maxrl import over_mean
from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import LOSS
from posttrain.algorithms.surrogate import SURROGATES
from posttrain.errors import ParamsError
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import Case, Shape, build, run, with_gradient
from posttrain.losses import group_advantages
from tests.library.laws import oracle
from tests.library.laws.oracle_laws import LAWS
from tests.library.laws.subjects import subjects

SHAPE = Shape(seed=3, groups=4, size=4, longest=7)


def t(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def term(name: str, ratio: Tensor, old: Tensor, advantage: Tensor, lengths: Tensor, **options: float) -> Tensor:
    """The surrogate of some tokens [N] by their ratio and the sampler's log-probs."""
    objective = PolicyObjective(PolicyConfig.model_validate({"surrogate": {"type": name, **options}}), 9)
    step = Ragged(lengths, {}, {"old_logp": old, "advantage": advantage})
    inputs = objective._surrogate_inputs(step, old + ratio.log())
    return objective._surrogate_terms(inputs, objective.config.surrogate)


def test_everything_built_in_has_its_oracle() -> None:
    missing = set(SURROGATES) - set(oracle.SURROGATES)
    missing |= (set(ADVANTAGES) - oracle.ADVANTAGES) | (set(LOSS.table) - oracle.LOSSES)
    assert not missing, f"write them down from their papers in tests/library/laws/oracle.py: {sorted(missing)}"


def test_a_surrogate_without_an_oracle_is_held_against_all_other_laws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SURROGATES.modules, "made_up", SURROGATES.modules["sapo"])
    monkeypatch.setitem(sapo.SURROGATES, "made_up", replace(SURROGATES["sapo"]))
    objective = PolicyObjective(PolicyConfig.model_validate({"surrogate": "made_up"}), 9)
    for name, law in LAWS.items():
        error = law.check(objective, SHAPE)
        assert (error is None) == (name in ("value", "gradient", "direction", "pull")), name
        assert error is None or error <= law.tolerance


def test_sapo_by_hand() -> None:
    found = term("sapo", t(1.0, 2.0, 2.0), t(-1, -1, -1), t(1, 1, -1), torch.tensor([3]))
    assert_close(found, t(2.0, 4 / (1 + math.exp(-1)), -4 / 1.05 / (1 + math.exp(-1.05))))


def test_gmpo_is_a_geometric_mean_of_clipped_ratios() -> None:
    ratio = t(2.0, 0.5, 1.2, 2.0, 0.5)
    found = term("gmpo", ratio, t(-3, -3, -3, -3, -3), t(1, 1, 1, -1, -1), torch.tensor([3, 2]))
    up = (math.exp(0.4) * 0.5 * 1.2) ** (1 / 3)
    down = -((2.0 * math.exp(-0.4)) ** (1 / 2))
    assert_close(found, t(up, up, up, down, down))


@pytest.mark.parametrize(("name", "at_limit"), [("dppo_tv", 0.25), ("dppo_kl", None)])
def test_dppo_masks_strictly_and_only_what_moves_further_away(name: str, at_limit: float | None) -> None:
    mu, pi = 0.25, 0.5  # exact in binary, and so is their distance
    limit = at_limit or mu * math.log(mu / pi) + (1 - mu) * math.log((1 - mu) / (1 - pi))
    old = t(*[math.log(mu)] * 2)
    for edge, masked in ((limit * (1 + 1e-12), False), (limit * (1 - 1e-12), True)):
        found = term(name, t(pi / mu, pi / mu), old, t(1, -1), torch.tensor([2]), limit_pos=edge, limit_neg=edge)
        assert float(found[0]) == pytest.approx(0.0 if masked else 2 * math.log(pi))
        assert float(found[1]) == pytest.approx(-2 * math.log(pi)), "it moves back, and so is never masked"
    if at_limit is not None:
        exact = term(name, t(pi / mu), old[:1], t(1), torch.tensor([1]), limit_pos=at_limit)
        assert float(exact) != 0, "a token at the limit is not beyond it"


def test_gspo_token_is_gspo_where_a_sequence_has_one_advantage() -> None:
    edges = {"low": 0.1, "high": 0.2}
    found = [
        run(build(PolicyObjective(POLICY_ROWS[name].settings(surrogate=edges), 9), SHAPE))
        for name in ("gspo", "gspo_token")
    ]
    assert found[0].metrics["clip_fraction"] > 0
    assert_close(found[0].loss, found[1].loss, rtol=1e-12, atol=1e-12)
    assert_close(found[0].gradients["logp"], found[1].gradients["logp"], rtol=1e-10, atol=1e-12)


def marked(case: Case, column: str) -> set[tuple[int, int]]:
    """The marked tokens by the key of their row and their position."""
    step = case.objective.prepare(case.step, dict(case.state)).step
    starts = (step.lengths_B.cumsum(0) - step.lengths_B).tolist()
    rows = zip(step.rows["sample_key"].tolist(), starts, step.lengths_B.tolist(), strict=True)
    return {(key, i) for key, start, length in rows for i in range(length) if bool(step.tokens[column][start + i])}


@pytest.mark.parametrize(("name", "column"), [("clip_cov", "dropped"), ("kl_cov", "penalised")])
def test_the_marked_tokens_belong_to_samples_and_not_to_their_order(name: str, column: str) -> None:
    case = build(subjects()[f"{name}, a large share"](), SHAPE)
    first = marked(case, column)
    assert len(first) > 1
    for seed in range(5):
        order = torch.randperm(len(case.step), generator=torch.Generator().manual_seed(seed))
        assert marked(replace(case, step=case.step.select(order)), column) == first


def test_kl_cov_breaks_ties_by_the_sample_and_then_by_position() -> None:
    settings = POLICY_ROWS["kl_cov"].settings(surrogate={"share": 0.5})
    case = build(PolicyObjective(settings, 9), Shape(seed=1, groups=1, size=2))
    tokens = {name: torch.full((4,), -1.0, dtype=torch.float64) for name in ("old_logp", "step_start_logp")}
    rows = {
        "reward": t(1, 1),
        "group": torch.tensor([0, 0]),
        "truncated": torch.zeros(2, dtype=torch.bool),
        "sample_key": torch.tensor([5, -5]),
    }
    case = replace(case, step=Ragged(torch.tensor([2, 2]), rows, tokens))
    assert marked(case, "penalised") == {(-5, 0), (-5, 1)}


def test_kl_cov_charges_nothing_on_its_own_samples() -> None:
    objective = subjects()["kl_cov, a large share"]()
    case = build(objective, SHAPE)
    same = dict.fromkeys(("old_logp", "step_start_logp"), case.leaves["logp"])
    case = replace(case, step=case.step.with_tokens(**same))
    prepared = objective.prepare(case.step, dict(case.state)).step
    assert bool(prepared.tokens["penalised"].any())
    expected = -prepared.tokens["weight"] * prepared.tokens["advantage"]
    assert_close(run(case).gradients["logp"], expected)


def test_clip_cov_leaves_terms_of_zero_in_the_denominator() -> None:
    case = build(subjects()["clip_cov, a large share"](), SHAPE)
    plain = replace(case, objective=PolicyObjective(POLICY_ROWS["grpo"].settings(kl="none", truncated="mask"), 9))
    step = case.objective.prepare(case.step, {"beta": 0.0}).step
    dropped = step.tokens["dropped"]
    mine, theirs = run(case).gradients["logp"], run(plain).gradients["logp"]
    assert bool((mine[dropped] == 0).all()) and bool((theirs[dropped] != 0).any())
    assert_close(mine[~dropped], theirs[~dropped])


def test_gdpo_whitens_the_weighted_scores_over_rows() -> None:
    parts = torch.randn(12, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    group = torch.arange(12) // 4
    found = decoupled([(parts[:, 0], 1.0), (parts[:, 1], 0.25)], group)
    raw = group_zscore(parts[:, 0], group) + 0.25 * group_zscore(parts[:, 1], group)
    assert_close(found, (raw - raw.mean()) / (raw.var() + 1e-8).sqrt())
    assert_close(decoupled([(parts[:, 0], 1.0), (100 * parts[:, 1], 0.25)], group), found, rtol=1e-3, atol=1e-3)


def test_gdpo_is_0_where_no_part_differs() -> None:
    part = torch.ones(6, dtype=torch.float64)
    assert bool((decoupled([(part, 1.0), (part, 1.0)], torch.arange(6) // 3) == 0).all())


def test_gdpo_refuses_weights_that_are_not_those_of_the_parts() -> None:
    with pytest.raises(ParamsError, match=r"rewards of shape \[6, 2\] and 1 weights"):
        group_advantages("gdpo", torch.ones(6, 2), 3, weights=(1.0,))


def test_maxrl_by_hand() -> None:
    found = over_mean(t(1, 0, 0, 0, 0, 0, 0, 0), torch.arange(8) // 4)
    assert_close(found, t(3, -1, -1, -1, 0, 0, 0, 0))


def test_maxrl_refuses_a_negative_reward() -> None:
    case = build(subjects()["maxrl"](), SHAPE)
    case = replace(case, step=case.step.with_rows(reward=-case.step.rows["reward"] - 1))
    with pytest.raises(ParamsError, match="Use rewards of 0 or more"):
        run(case)


@pytest.mark.parametrize("name", [name for name, one in ADVANTAGES.items() if one.nonnegative or one.by_part])
def test_what_changes_the_reward_is_refused_where_it_has_no_place(name: str) -> None:
    with pytest.raises(ValueError, match=r"Use kl\.type loss"):
        PolicyConfig.model_validate({"advantage": name, "kl": {"type": "reward_sequence", "beta": 0.1}})


@pytest.mark.parametrize("name", [name for name, one in SURROGATES.items() if not one.needs_sequence])
def test_a_surrogate_of_single_tokens_sees_no_lengths(name: str) -> None:
    objective = PolicyObjective(PolicyConfig.model_validate({"surrogate": name}), 9)
    case = build(objective, SHAPE)
    prepared = objective.prepare(case.step, dict(case.state))
    whole = with_gradient(prepared.step, case.leaves)
    one = whole.tokens_in(slice(0, int(whole.lengths_B.sum())))
    assert_close(*(objective.loss(part, prepared.state).total for part in (one, whole)))
