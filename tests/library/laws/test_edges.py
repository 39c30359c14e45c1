"""Edges of the formulas that a small slip in the code would move, each by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.corrections import correction_weights
from posttrain.algorithms.policy.dppo import NEARLY_CERTAIN, binary_kl
from posttrain.algorithms.policy.grpo import group_centred, group_zscore
from posttrain.algorithms.policy_config import POLICY_ROWS, PolicyConfig, foreign_refusal
from posttrain.algorithms.policy_objective import PolicyObjective, doubling_factor
from posttrain.algorithms.preference.orpo import NEAR_ZERO, log_odds, orpo
from posttrain.algorithms.surrogate import SURROGATES
from posttrain.formulas.policy import CAP, OVERFLOW, k3, token_log_ratio
from posttrain.formulas.ragged import Ragged
from posttrain.laws.cases import Shape, build
from posttrain.losses import policy_loss, preference_loss, value_loss, whiten


def t(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def options_of(name: str, **options: float) -> object:
    return PolicyConfig.model_validate({"surrogate": {"type": name, **options}}).surrogate


def one_row(**tokens: Tensor) -> Ragged:
    """One sequence whose token columns are given; every token counts unless `weight` is given."""
    count = len(next(iter(tokens.values())))
    columns = {"weight": torch.ones(count, dtype=torch.float64), "old_logp": torch.zeros(count), **tokens}
    if "old_logp" in columns:
        columns.setdefault("sampling_logp", columns["old_logp"])
    return Ragged(torch.tensor([count]), {"sample_key": torch.tensor([7])}, columns)


def marked(name: str, step: Ragged, **options: float) -> list[bool]:
    prepare = SURROGATES[name].prepare
    assert prepare is not None
    ((_, column),) = prepare(step, options_of(name, **options)).items()
    return column.tolist()


def test_covariances_are_about_the_means_of_counted_tokens() -> None:
    """The two counted tokens have a covariance of 1 each; with the third in the means it would be above 1,000."""
    tokens = {"advantage": t(-1, 1, 100), "step_start_logp": t(-1, 1, 100) - 2, "weight": t(1, 1, 0)}
    step = one_row(**tokens, old_logp=tokens["step_start_logp"])
    one_of_both = marked("clip_cov", step, share=0.9, cov_low=0.99, cov_high=1.01)
    assert one_of_both.count(True) == 1 and not one_of_both[2]
    assert marked("clip_cov", step, share=0.9, cov_low=1.01, cov_high=1.02) == [False] * 3


@pytest.mark.parametrize(("cov_high", "expected"), [(4.0, [True, True]), (3.99, [False, False])])
def test_clip_covs_band_includes_its_upper_edge(cov_high: float, expected: list[bool]) -> None:
    """Two tokens of covariance 4 exactly, each 2 from both means."""
    logp = t(-5, -1)
    step = one_row(advantage=t(-2, 2), step_start_logp=logp, old_logp=logp)
    found = [marked("clip_cov", step, share=share, cov_low=1.0, cov_high=cov_high) for share in (0.5, 0.999)]
    assert found[0].count(True) == int(expected[0]) and found[1].count(True) == int(expected[0])


def test_clip_cov_judges_what_is_clipped_by_the_policy_that_its_clip_is_against() -> None:
    """The trainer's own old log-probs say that nothing has moved; those of the sampler, that both tokens were cut."""
    logp, sampler = t(-5, -1), t(-4, -3)
    step = one_row(advantage=t(-2, 2), step_start_logp=logp, sampling_logp=sampler)
    assert marked("clip_cov", step, share=0.5) == [False, False]
    assert sum(marked("clip_cov", step.with_tokens(sampling_logp=logp), share=0.5)) == 1


def test_kl_covs_ties_go_to_the_smaller_key_then_to_the_earlier_token() -> None:
    flat = torch.full((6,), -1.0, dtype=torch.float64)
    columns = {"weight": torch.ones(6), "advantage": flat, "step_start_logp": flat, "old_logp": flat}
    step = Ragged(torch.tensor([3, 3]), {"sample_key": torch.tensor([9, 4])}, columns)
    assert marked("kl_cov", step, share=0.34) == [False, False, False, True, True, False]
    assert marked("kl_cov", step, share=0.67) == [True, False, False, True, True, True]


@pytest.mark.parametrize(("kind", "inside"), [("mask", 2.0), ("reject", 1.0)])
def test_the_upper_edge_of_a_correction_is_inside(kind: str, inside: float) -> None:
    ratio = t(2.0, 2.0 + 1e-9, 0.5, 0.5 - 1e-9)
    step = Ragged(torch.tensor([4]), {}, {"old_logp": torch.zeros(4).double(), "recomputed_logp": ratio.log()})
    exact = ratio.log().exp()  # the edges as the computation sees them
    knobs = PolicyConfig.model_validate({"correction": {"type": kind, "high": float(exact[0]), "low": float(exact[2])}})
    found = correction_weights(step, knobs.correction)
    assert_close(found, t(inside, 0.0, 0.5 if kind == "mask" else 1.0, 0.0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_differs_from_the_mean_by_rounding_alone_is_0_after_whitening(dtype: torch.dtype) -> None:
    """Its sign would say whether it is clipped: found by the laws, in single precision."""
    values = torch.tensor([[0.0, -2 / 3, 0.0, -2 / 3, 0.0, -1 / 3, 2 / 3, 2 / 3, 1 / 3]], dtype=dtype) + 0.1
    found = whiten(values, torch.ones_like(values))
    assert found[0, [0, 2, 4]].tolist() == [0.0, 0.0, 0.0] and bool((found[0, [1, 3, 5, 6, 7, 8]] != 0).all())


def test_groups_of_equal_rewards_have_advantages_of_exactly_0() -> None:
    """0.7 * 3 / 3 is not 0.7 in single precision."""
    rewards, groups = torch.tensor([0.7, 0.7, 0.7, 0.1, 0.1, 0.1, 0.1]), torch.tensor([0, 0, 0, 1, 1, 1, 1])
    for advantage in (group_centred, group_zscore):
        assert advantage(rewards, groups).tolist() == [0.0] * 7


def test_whitening_leaves_dropped_tokens_out_of_mean_and_deviation() -> None:
    knobs = POLICY_ROWS["reinforce_pp"].settings(truncated="mask", kl="none")
    rows = {"reward": t(1, 3, 1000), "truncated": torch.tensor([False, False, True])}
    step = Ragged(torch.tensor([1, 1, 1]), rows, {"old_logp": t(-1, -1, -1)})
    objective = PolicyObjective(knobs, 9)
    advantage = objective.prepare(step, objective.initial_state()).step.tokens["advantage"]
    assert_close(advantage[:2], t(-1, 1) / math.sqrt(2), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["ppo", "reinforce_pp"])
def test_policy_loss_whitens_the_advantages_that_it_is_given(name: str) -> None:
    """Of ppo and reinforce_pp; advantages that are shifted and scaled give the same loss, and `whiten: False` not."""
    torch.manual_seed(0)
    logp, mask = -torch.rand(2, 3, dtype=torch.float64), torch.ones(2, 3)
    old, given = logp - 0.1 * torch.randn(2, 3, dtype=torch.float64), torch.randn(2, 3, dtype=torch.float64)

    def loss(advantages: Tensor, **settings: object) -> Tensor:
        return policy_loss(name, logp, old, advantages, mask, settings=settings)[0]

    assert_close(loss(given), loss(7 + 3 * given))
    assert_close(loss(given), loss(whiten(given, mask), whiten=False))
    assert abs(float(loss(given) - loss(given, whiten=False))) > 1e-3


def test_adaptive_kl_measures_the_policy_that_sampled() -> None:
    """Sampled at a KL of 0 to the reference, while the policy has moved since: beta falls as for a KL of 0."""
    knobs = POLICY_ROWS["ppo"].settings(kl={"target": 6.0, "horizon": 10})
    objective, state = PolicyObjective(knobs, 9), {}
    state = objective.initial_state()
    old = t(-1, -1)
    rows = {"reward": t(1, 0), "truncated": torch.zeros(2, dtype=torch.bool), "fresh": torch.ones(2, dtype=torch.bool)}
    columns = {"old_logp": old, "ref_logp": old, "step_start_logp": old + 50, "logp": old + 50, "old_value": t(0, 0)}
    after = objective.prepare(Ragged(torch.tensor([1, 1]), rows, columns), state).state
    assert after["beta"] == state["beta"]
    assert after["next_beta"] == pytest.approx(state["beta"] * (1 - 0.2 * 2 / 10))


@pytest.mark.parametrize(("first", "end"), [(0.3, 0.0), (0.0, 0.3), (0.2, 0.2)])
def test_beta_goes_to_its_end_on_a_straight_line_and_stays_there(first: float, end: float) -> None:
    objective = PolicyObjective(POLICY_ROWS["grpo"].settings(kl={"beta": first, "end": end, "steps": 4}), 9)
    old, state, betas = t(-1, -1), objective.initial_state(), []
    rows = {"reward": t(1, 0), "truncated": torch.zeros(2, dtype=torch.bool), "group": torch.zeros(2).long()}
    for _ in range(7):
        state = objective.prepare(Ragged(torch.tensor([1, 1]), rows, {"old_logp": old, "ref_logp": old}), state).state
        betas.append(state["beta"])
    assert betas == pytest.approx([first + (end - first) * min(step, 4) / 4 for step in range(7)])
    assert betas[-1] == end or betas[-1] == pytest.approx(end, abs=1e-15)


@pytest.mark.parametrize("row", ["grpo", "cispo", "gspo", "dual_clip", "top_entropy", "clip_cov"])
def test_edges_go_to_their_ends_on_a_straight_line_and_stay_there(row: str) -> None:
    edges = {"low": 0.3, "low_end": 0.1, "high": 0.2, "high_end": 0.5, "steps": 4}
    objective = PolicyObjective(POLICY_ROWS[row].settings(surrogate=edges), 9)
    state, seen = objective.initial_state(), []
    for _ in range(7):
        case = build(objective, Shape(seed=1))
        state = objective.prepare(case.step, state).state
        options = objective._options(state)
        seen.append((options.low, options.high))
    assert seen == [
        (pytest.approx(0.3 - 0.05 * min(step, 4)), pytest.approx(0.2 + 0.075 * min(step, 4))) for step in range(7)
    ]
    assert seen[-1] == (0.1, 0.5)


def test_a_token_is_cut_once_an_edge_has_passed_its_ratio() -> None:
    objective = PolicyObjective(POLICY_ROWS["grpo"].settings(surrogate={"high_end": 0.05, "steps": 2}, kl="none"), 9)
    old, state, cut = t(-1, -1), objective.initial_state(), []
    rows = {"reward": t(1, 0), "truncated": torch.zeros(2, dtype=torch.bool), "group": torch.zeros(2).long()}
    for _ in range(3):
        step = Ragged(torch.tensor([1, 1]), rows, {"old_logp": old})
        prepared = objective.prepare(step, state)
        state, logp = prepared.state, (old + t(math.log(1.1), 0.0)).requires_grad_()
        loss = objective.loss(prepared.step.with_tokens(logp=logp, entropy=t(0, 0)), state)
        (gradient,) = torch.autograd.grad(loss.total, logp)
        cut.append((float(gradient[0]) == 0, float(loss.metrics["clip_high"]) > 0))
    assert cut == [(False, False), (False, False), (True, True)]  # edges at 1.2, 1.125, 1.05


def test_the_penalty_doubles_above_one_and_a_half_times_its_target() -> None:
    assert [doubling_factor(kl, 1.0) for kl in (1.4, 1.49, 1.5, 1.51)] == [1, 1, 1, 2]
    assert [doubling_factor(kl, 1.0) for kl in (0.7, 0.67, 0.66, 0.5)] == [1, 1, 0.5, 0.5]


def test_log_ratios_are_exact_up_to_20_and_bounded_there() -> None:
    logp, lengths = t(19.9, 20.0, 20.1, -19.9, -20.1).requires_grad_(), torch.tensor([5])
    found = token_log_ratio(logp, torch.zeros(5).double(), lengths)
    assert_close(found, t(19.9, 20, 20, -19.9, -20))
    found.sum().backward()
    assert logp.grad is not None and logp.grad.tolist() == [1, 1, 0, 1, 0]
    assert CAP == 20


def test_k3_is_exact_up_to_80_and_bounded_there() -> None:
    assert_close(k3(t(-79.0), t(0)), t(math.expm1(79) - 79), rtol=1e-12, atol=0)
    assert_close(k3(t(-81.0), t(0)), k3(t(-80.0), t(0)))
    assert bool(k3(torch.tensor([-300.0]), torch.zeros(1)).isfinite()) and OVERFLOW == 80


def test_dppo_kl_of_nearly_certain_tokens() -> None:
    """log(1 - p) of a certain token is that of log p = -1e-7, so its KL is finite and grows with the distance."""
    certain, half = t(0.0), t(math.log(0.5))
    expected = 0.5 * math.log(0.5) + 0.5 * (math.log(0.5) - math.log(-math.expm1(-1e-7)))
    assert_close(binary_kl(certain, half), t(expected))
    assert_close(binary_kl(t(-2e-7), half), t(0.5 * (math.log(0.5) + 2e-7) + 0.5 * math.log(0.5 / -math.expm1(-2e-7))))
    assert NEARLY_CERTAIN == -1e-7


def test_orpos_odds_of_nearly_certain_answers() -> None:
    """log odds of log p = -1e-6 and above are log(p / (1 - p)) at -1e-6; just below they are exact."""
    at_edge = -1e-6 - math.log(-math.expm1(-1e-6))
    assert_close(log_odds(t(0.0, -1e-9, -1e-6)), t(at_edge, at_edge, at_edge))
    assert_close(log_odds(t(-2e-6)), t(-2e-6 - math.log(-math.expm1(-2e-6))))
    wide = math.log1p(math.exp(-(at_edge - math.log(0.5 / 0.5))))
    assert_close(orpo(t(0.0), t(math.log(0.5)), 1.0), t(wide))
    assert NEAR_ZERO == -1e-6


HALF = torch.bfloat16


def test_losses_given_in_half_precision_are_computed_in_single() -> None:
    """The numbers are those of the same inputs as float32, to the bit: else up to 3 % off, and tokens flip at edges."""
    torch.manual_seed(1)
    logp, old = (-3 * torch.rand(6, 50)).to(HALF), (-3 * torch.rand(6, 50)).to(HALF)
    other, mask = torch.randn(6, 50).to(HALF), torch.rand(6, 50) > 0.2
    calls = {
        "policy": lambda a, b, c: policy_loss("dapo", a, b, c, mask),
        "value": lambda a, b, c: value_loss(a, b, c, mask),
        "likelihood": lambda a, b, _: preference_loss("dpo", a, mask, ref_logp=b, settings={"nll": 1.0}),
        "simpo": lambda a, _, __: preference_loss("simpo", a, mask),
    }
    for name, loss in calls.items():
        half, single = loss(logp, old, other), loss(logp.float(), old.float(), other.float())
        if isinstance(half, tuple):
            assert half[1] == single[1], name
            half, single = half[0], single[0]
        assert half.dtype == torch.float32 and torch.equal(half, single), name


def test_dppo_takes_the_sampler_as_its_old_policy_and_refuses_a_correction() -> None:
    for name in ("dppo_tv", "dppo_kl"):
        assert foreign_refusal(POLICY_ROWS[name].settings(), foreign=True) is None
        with pytest.raises(ValueError, match=r"already bounds the distance to the sampler.*Use correction none"):
            POLICY_ROWS[name].settings(correction="truncate")
    assert foreign_refusal(POLICY_ROWS["grpo"].settings(), foreign=True)
