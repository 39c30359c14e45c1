"""`posttrain.losses` computes what the pipeline's objectives compute, on padded batches with padding on both sides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.algorithms.objective import Loss, Prepared, step_metrics, with_gradient
from posttrain.algorithms.policy_config import POLICY_ROWS
from posttrain.algorithms.policy_objective import PolicyObjective
from posttrain.algorithms.preference_config import PREFERENCE_ROWS
from posttrain.algorithms.preference_objective import PreferenceObjective
from posttrain.algorithms.reward import RewardConfig, RewardObjective
from posttrain.errors import ParamsError
from posttrain.formulas.ragged import to_padded
from posttrain.laws.cases import LONGEST, Case, Shape, build
from posttrain.losses import (
    gae,
    group_advantages,
    kl_estimate,
    policy_loss,
    preference_loss,
    reward_loss,
    token_logprobs,
    token_logprobs_from_hidden,
    value_loss,
    whiten,
)

SHAPES = [Shape(0), Shape(1, groups=2, size=4, longest=3, binary=True), Shape(2, groups=4, size=2, longest=1)]
POLICY_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in POLICY_ROWS),
    ("ppo", {"entropy": 0.01, "advantage": {"lam": 0.8, "gamma": 0.9}}),
    ("grpo", {"correction": {"type": "truncate", "high": 1.2}}),
    ("grpo", {"correction": {"type": "mask", "level": "sequence", "low": 0.9, "high": 1.1}}),
    ("grpo", {"kl": {"target": 3.0, "horizon": 50}}),
    ("cispo", {"correction": "truncate", "surrogate": {"low": 0.2, "high": 0.3}}),
    ("clip_cov", {"surrogate": {"share": 0.3, "cov_low": 0.1}, "truncated": "mask"}),
    ("rloo", {"kl": {"type": "loss", "estimator": "k2", "beta": 0.1}}),
    ("reinforce", {"advantage": "moving_average"}),
]
PREFERENCE_VARIANTS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in PREFERENCE_ROWS),
    ("dpo", {"nll": 0.2, "reduce": "mean"}),
    ("slic", {"reference": True, "loss": {"delta": 0.3}}),
    ("kto", {"loss": {"desirable": 1.5, "undesirable": 0.5}, "nll": 0.1}),
]
each_shape = pytest.mark.parametrize("shape", SHAPES)


class Padded:
    """The columns of a case as [B, T], with a column of padding at the left and numbers that may not be read."""

    def __init__(self, case: Case) -> None:
        self.lengths = case.step.lengths_B
        inner = to_padded(torch.ones(int(self.lengths.sum())), self.lengths).bool()
        self.mask = torch.cat([torch.zeros(len(inner), 1, dtype=torch.bool), inner], dim=1)
        self.leaves = {name: leaf.clone().requires_grad_() for name, leaf in case.leaves.items()}
        self.tokens = {name: self(column) for name, column in case.step.tokens.items()}
        self.logp = self(self.leaves["logp"])

    def __call__(self, column: Tensor) -> Tensor:
        return column.new_full(self.mask.shape, 7.0).masked_scatter(self.mask, column)

    def gradients(self, loss: Tensor) -> dict[str, Tensor]:
        return dict(zip(self.leaves, torch.autograd.grad(loss, list(self.leaves.values()), materialize_grads=True,
                                                         allow_unused=True), strict=True))  # fmt: skip


def pipeline(case: Case) -> tuple[Prepared, Loss, dict[str, Tensor]]:
    """What the pipeline's objective makes of the case: the prepared step, the loss and its gradients."""
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in case.leaves.items()}
    prepared = case.objective.prepare(case.step, dict(case.state))
    loss = case.objective.loss(with_gradient(prepared.step, leaves), prepared.state)
    gradients = torch.autograd.grad(loss.total, list(leaves.values()), materialize_grads=True, allow_unused=True)
    return prepared, loss, dict(zip(leaves, gradients, strict=True))


def compare(padded: Padded, loss: Tensor, theirs: tuple[Prepared, Loss, dict[str, Tensor]]) -> None:
    _, expected, gradients = theirs
    assert_close(loss, expected.total, rtol=1e-6, atol=1e-6)
    for name, gradient in padded.gradients(loss).items():
        assert_close(gradient, gradients[name], rtol=1e-6, atol=1e-6, msg=name)


@each_shape
@pytest.mark.parametrize(("name", "settings"), POLICY_VARIANTS)
def test_policy_loss_is_the_pipelines(name: str, settings: dict[str, Any], shape: Shape) -> None:
    knobs = POLICY_ROWS[name].settings(**settings)
    case = build(PolicyObjective(knobs, LONGEST), shape)
    if "sample_key" in case.step.rows:
        numbered = torch.arange(len(case.step))
        case = Case(case.objective, case.step.with_rows(sample_key=numbered), case.leaves, case.state)
    if "step_start_logp" in case.step.tokens:
        case = Case(case.objective, case.step.with_tokens(step_start_logp=case.leaves["logp"]), case.leaves, case.state)
    if "step_start_entropy" in case.step.tokens:
        now = {"step_start_entropy": case.leaves["entropy"]}
        case = Case(case.objective, case.step.with_tokens(**now), case.leaves, case.state)
    if "age" in case.step.rows:
        case = Case(
            case.objective, case.step.with_rows(age=torch.ones_like(case.step.rows["age"])), case.leaves, case.state
        )
    if "fresh" in case.step.rows:
        fresh = torch.ones(len(case.step), dtype=torch.bool)
        case = Case(case.objective, case.step.with_rows(fresh=fresh), case.leaves, case.state)
    theirs = pipeline(case)
    padded, prepared, rows, state = Padded(case), theirs[0], case.step.rows, dict[str, float]()
    mask, tokens, coefficient = padded.mask, padded.tokens, 0.0
    if "opponent" in rows:
        mask = mask & ~rows["opponent"][:, None]
    advantages = padded(prepared.step.tokens["advantage"])
    options: dict[str, Any] = {"ref_logp": tokens.get("ref_logp"), "entropy": padded(padded.leaves["entropy"])}
    options |= {"truncated": rows["truncated"]} if knobs.truncated == "mask" else {}
    options |= {"groups": rows["group"]} if "group" in knobs.surrogate_entry.needs else {}
    options |= {"max_length": LONGEST} if knobs.aggregation == "fixed_length" else {}
    old = tokens["old_logp"]
    if knobs.correction.type != "none":
        options["sampler_logp"], old = old, tokens["recomputed_logp"]
    options |= {"epoch": 0 if "fresh" in rows else 1}
    loss, metrics = policy_loss(name, padded.logp, old, advantages, mask, settings=settings, state=state, **options)
    if "value" in padded.leaves:
        value = padded(padded.leaves["value"])
        returns = padded(prepared.step.tokens["return"])
        clip, coefficient = knobs.advantage.value_clip, knobs.advantage.value_coef
        loss = loss + coefficient * value_loss(value, tokens["old_value"], returns, mask, clip=clip)
    compare(padded, loss, theirs)
    expected = step_metrics(theirs[1].metrics)
    for key, measured in metrics.items():
        assert measured == pytest.approx(expected[key], rel=1e-6, abs=1e-6), key
    same = prepared.state.keys() & state.keys() - {"baseline", "baseline_weight"}
    assert {key: state[key] for key in same} == pytest.approx({key: prepared.state[key] for key in same})


@each_shape
@pytest.mark.parametrize(("name", "settings"), PREFERENCE_VARIANTS)
def test_preference_loss_is_the_pipelines(name: str, settings: dict[str, Any], shape: Shape) -> None:
    objective = PreferenceObjective(PREFERENCE_ROWS[name].settings(**settings))
    case = build(objective, shape)
    if objective.matched:
        case = replace(case, step=case.step.with_tokens(step_start_logp=case.leaves["logp"]))
    rows = case.step.rows
    if "side" in rows:  # chosen rows first; items are in order on both sides
        order = torch.cat([(rows["side"] > 0).nonzero(), (rows["side"] < 0).nonzero()]).squeeze(1)
    else:
        order = torch.arange(len(case.step))
        case = Case(case.objective, case.step.with_tokens(step_start_logp=case.leaves["logp"]), case.leaves, case.state)
    theirs, padded, state = pipeline(case), Padded(case), dict[str, float]()
    options = {"ref_logp": padded.tokens["ref_logp"][order]} if "ref_logp" in padded.tokens else {}
    options |= {"labels": rows["label"]} if "label" in rows else {}
    loss, metrics = preference_loss(name, padded.logp[order], padded.mask[order], settings=settings, state=state,
                                    **options)  # fmt: skip
    compare(padded, loss, theirs)
    expected = {**theirs[0].metrics, **step_metrics(theirs[1].metrics)}
    assert metrics == pytest.approx(expected, abs=1e-6)
    assert state == pytest.approx(theirs[0].state)


@each_shape
@pytest.mark.parametrize(("margins", "weight"), [("constant", 0.0), ("column", 0.3)])
def test_reward_loss_is_the_pipelines(margins: str, weight: float, shape: Shape) -> None:
    case = build(RewardObjective(RewardConfig(margins=margins, centring=weight)), shape)
    side, score = case.step.rows["side"], case.leaves["score"].clone().requires_grad_()
    margin = case.step.rows["margin"][side > 0] if margins == "column" else 0.0
    loss, metrics = reward_loss(score[side > 0], score[side < 0], margin=margin, centring_weight=weight)
    _, expected, gradients = pipeline(case)
    assert_close(loss, expected.total)
    assert_close(torch.autograd.grad(loss, score)[0], gradients["score"])
    assert metrics == pytest.approx({key: float(part.detach()) for key, part in expected.metrics.items()})


@each_shape
@pytest.mark.parametrize("name", [name for name in POLICY_ROWS if name not in {"reinforce", "nash_md", "opo"}])
def test_advantages_are_the_pipelines(name: str, shape: Shape) -> None:
    """Built from the parts: the KL penalty on the reward, the comparison, and whitening."""
    knobs = POLICY_ROWS[name].settings()
    case = build(PolicyObjective(knobs, LONGEST), shape)
    prepared, padded, rows = pipeline(case)[0], Padded(case), case.step.rows
    mask, rewards = padded.mask, rows["reward"]
    penalty = torch.zeros(mask.shape, dtype=torch.float64)
    if knobs.kl.type.startswith("reward"):
        penalty = knobs.kl.beta * kl_estimate(padded.tokens["old_logp"], padded.tokens["ref_logp"], "k1") * mask
    if knobs.advantage_entry.grouped:
        given = (
            torch.stack([rows["part.first"], rows["part.second"]], 1) if name == "gdpo" else rewards - penalty.sum(1)
        )
        numbered = group_advantages(name, given, rows["group"], weights=(1.0, 0.5))
        found = numbered[:, None] * mask
    else:
        values = padded.tokens.get("old_value", torch.zeros_like(penalty))
        last = torch.nn.functional.one_hot(mask.shape[1] - 1 - mask.flip(1).long().argmax(1), mask.shape[1])
        lam = knobs.advantage.lam if "old_value" in padded.tokens else 1.0
        found, returns = gae(rewards[:, None] * last - penalty, values, mask, lam=lam)
        assert_close(gae(rewards, values, mask, lam=lam)[0], gae(rewards[:, None] * last, values, mask, lam=lam)[0])
        if "return" in prepared.step.tokens:
            assert_close(returns[mask], prepared.step.tokens["return"])
    found = whiten(found, mask) if knobs.whiten else found
    assert_close(found[mask], prepared.step.tokens["advantage"])


def test_groups_of_neighbours() -> None:
    rewards = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 1.0])
    assert_close(group_advantages("rloo", rewards, 3), torch.tensor([1.0, -0.5, -0.5, 0.0, 0.0, 0.0]))
    prompts = torch.tensor([5.0, 5.0, 5.0, 2.0, 2.0, 2.0])
    assert_close(group_advantages("grpo", rewards, 3), group_advantages("grpo", rewards, prompts))


@pytest.mark.parametrize(("name", "by_tokens"), [("grpo", False), ("rloo", False), ("dapo", True), ("cispo", True)])
def test_micro_batches_add_up_by_their_share(name: str, by_tokens: bool) -> None:
    case = build(PolicyObjective(POLICY_ROWS["grpo"].settings(), LONGEST), SHAPES[0])
    padded = Padded(case)
    mask, old, ref = padded.mask, padded.tokens["old_logp"], padded.tokens["ref_logp"]
    advantages = group_advantages(name, case.step.rows["reward"], case.step.rows["group"])

    def part(rows: slice) -> Tensor:
        reference = {"ref_logp": ref[rows]} if name == "grpo" else {}
        loss, _ = policy_loss(name, padded.logp[rows], old[rows], advantages[rows], mask[rows], **reference)
        share = mask[rows].sum() / mask.sum() if by_tokens else mask[rows].shape[0] / mask.shape[0]
        return loss * share

    assert_close(part(slice(0, 4)) + part(slice(4, None)), part(slice(None)))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_token_logprobs(temperature: float) -> None:
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, 8, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(11, 8, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(11, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(11, (3, 5))
    scaled = (hidden @ weight.T + bias) / temperature
    expected = torch.distributions.Categorical(logits=scaled)
    plain = torch.autograd.grad(
        (expected.log_prob(tokens) * expected.entropy()).sum(), (hidden, weight, bias), retain_graph=True
    )
    logits = hidden @ weight.T + bias
    for logp, entropy in (
        token_logprobs(logits, tokens, temperature=temperature),
        token_logprobs_from_hidden(hidden, tokens, weight, bias, temperature=temperature),
    ):
        assert_close(logp, expected.log_prob(tokens))
        assert_close(entropy, expected.entropy())
        assert_close(torch.autograd.grad((logp * entropy).sum(), (hidden, weight, bias), retain_graph=True), plain)


def test_grpo_by_hand() -> None:
    """Rewards 1 and 0: advantages +-0.7070...; on policy the gradient is -advantage / (rows * tokens of the row)."""
    mask = torch.tensor([[0, 1, 1], [1, 0, 0]])
    logp = -torch.rand(2, 3, dtype=torch.float64)
    logp.requires_grad_()
    advantages = group_advantages("grpo", torch.tensor([1.0, 0.0], dtype=torch.float64), 2)
    loss, metrics = policy_loss("grpo", logp, logp.detach(), advantages, mask, settings={"kl": "none"})
    edge = 0.5 / (0.5**0.5 + 1e-4)
    (gradient,) = torch.autograd.grad(loss, logp)
    assert_close(gradient, torch.tensor([[0, -edge / 4, -edge / 4], [edge / 2, 0, 0]], dtype=torch.float64))
    assert metrics["ratio"] == pytest.approx(1) and metrics["clip_fraction"] == 0


def test_ppos_penalty_follows_the_last_batch() -> None:
    state: dict[str, float] = {}
    logp, mask = torch.full((2, 2), -1.0), torch.ones(2, 2)

    def penalty(old: float, epoch: int) -> float:
        advantages = torch.tensor([[1.0, 2.0], [3.0, -1.0]])
        policy_loss("ppo_penalty", logp, logp + old, advantages, mask, epoch=epoch, state=state)
        return state["penalty"]

    assert [penalty(0.0, 0), penalty(1.0, 1), penalty(0.0, 0)] == [1.0, 1.0, 2.0]


LOGP, MASK = torch.full((4, 3), -0.5), torch.ones(4, 3)
REWARD = torch.tensor([1.0, 0.0, 0.0, 1.0])
MISTAKES: Mapping[str, Any] = {
    "algorithm: 'gpro' is unknown.*Did you mean 'grpo'": lambda: policy_loss("gpro", LOGP, LOGP, REWARD, MASK),
    "ref_logp: 'grpo' needs it": lambda: policy_loss("grpo", LOGP, LOGP, REWARD, MASK),
    "ref_logp: 'dapo' does not use it": lambda: policy_loss("dapo", LOGP, LOGP, REWARD, MASK, ref_logp=LOGP),
    "max_length: 'dr_grpo' needs it": lambda: policy_loss("dr_grpo", LOGP, LOGP, REWARD, MASK),
    "truncated: 'grpo_plus' needs it": lambda: policy_loss("grpo_plus", LOGP, LOGP, REWARD, MASK),
    "old_logp: its shape is \\(2, 3\\)": lambda: policy_loss("dapo", LOGP, LOGP[:2], REWARD, MASK),
    "groups: 'p3o' needs it": lambda: policy_loss("p3o", LOGP, LOGP, REWARD, MASK),
    "ptx": lambda: policy_loss("dapo", LOGP, LOGP, REWARD, MASK, settings={"ptx": 1.0}),
    "surrogate.hihg": lambda: policy_loss("dapo", LOGP, LOGP, REWARD, MASK, settings={"surrogate": {"hihg": 1}}),
    "groups: 4 rows are not groups of 3": lambda: group_advantages("grpo", REWARD, 3),
    "at least two samples": lambda: group_advantages("grpo", REWARD, torch.arange(4)),
    "Use gae": lambda: group_advantages("ppo", REWARD, 2),
    "rewards of 0 or more": lambda: group_advantages("maxrl", -REWARD, 2),
    "weighs rewards by lengths": lambda: group_advantages("opo", REWARD, 2),
    "labels: 'kto' needs it": lambda: preference_loss("kto", LOGP, MASK, ref_logp=LOGP),
    "ref_logp: 'simpo' does not use it": lambda: preference_loss("simpo", LOGP, MASK, ref_logp=LOGP),
    "3 rows are not pairs": lambda: preference_loss("simpo", LOGP[:3], MASK[:3]),
    "estimator: 'k4' is unknown": lambda: kl_estimate(LOGP, LOGP, "k4"),
    "Shift a causal model's output": lambda: token_logprobs(torch.zeros(2, 4, 5), torch.zeros(2, 3).long()),
}


@pytest.mark.parametrize("message", MISTAKES)
def test_mistakes_are_named(message: str) -> None:
    with pytest.raises((ParamsError, ValueError), match=message):
        MISTAKES[message]()


@pytest.mark.parametrize("shape", [(4, 1), (4, 2)])
def test_rewards_of_a_group_are_one_of_each_sample(shape: tuple[int, int]) -> None:
    with pytest.raises(ParamsError, match="one reward for each sample"):
        group_advantages("grpo", torch.ones(shape), 2)
