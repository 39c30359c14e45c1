"""The rows of 2026 by plain Python: numbers without tensors, with each row's denominator, ties and masks.

The batch has a row without a token, which takes part in nothing.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

from posttrain.algorithms.padded import padded_loss
from posttrain.algorithms.policy_objective import proportional_factor
from posttrain.algorithms.supervised import LikelihoodConfig, LikelihoodObjective
from posttrain.losses import group_advantages, policy_loss, preference_loss

LENGTHS = (4, 2, 3, 0)
WIDTH = 5
ROWS = [(row, place) for row, length in enumerate(LENGTHS) for place in range(length)]


def numbers(seed: int, low: float, high: float) -> list[list[float]]:
    draw = random.Random(seed)
    return [[draw.uniform(low, high) for _ in range(WIDTH)] for _ in LENGTHS]


LOGP, OLD, ENTROPY = numbers(1, -3.0, -0.1), numbers(15, -3.0, -0.1), numbers(3, 0.0, 2.0)
REF = numbers(7, -3.0, -0.1)
ADVANTAGE = [1.5, -0.75, -2.0, 99.0]
MASK = [[place < length for place in range(WIDTH)] for length in LENGTHS]


def tensor(values: object) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def policy(name: str, **more: Any) -> float:
    loss, _ = policy_loss(name, tensor(LOGP), tensor(OLD), tensor(ADVANTAGE), torch.tensor(MASK), **more)
    return float(loss)


def clipped(row: int, place: int, low: float, high: float) -> float:
    """PPO's term of a token, to be maximised."""
    ratio, advantage = math.exp(LOGP[row][place] - OLD[row][place]), ADVANTAGE[row]
    return min(ratio * advantage, min(max(ratio, 1 - low), 1 + high) * advantage)


def test_dual_clip_has_a_floor_for_bad_tokens_and_one_mean_over_all_tokens() -> None:
    terms = [clipped(row, place, 0.2, 0.2) for row, place in ROWS]
    floor = [3 * ADVANTAGE[row] if ADVANTAGE[row] < 0 else -math.inf for row, _ in ROWS]
    terms = [max(pair) for pair in zip(terms, floor, strict=True)]
    assert any(math.exp(LOGP[row][place] - OLD[row][place]) > 3 > 0 > ADVANTAGE[row] for row, place in ROWS)
    aggregation = {"aggregation": "token_mean"}
    assert policy("dual_clip", settings=aggregation) == pytest.approx(-sum(terms) / len(ROWS))


def test_top_entropy_keeps_the_other_tokens_in_the_denominator() -> None:
    highest = sorted(ROWS, key=lambda at: -ENTROPY[at[0]][at[1]])[: max(1, math.floor(0.2 * len(ROWS)))]
    found = policy("top_entropy", entropy=tensor(ENTROPY))
    assert found == pytest.approx(-sum(clipped(row, place, 0.2, 0.2) for row, place in highest) / len(ROWS))


def test_top_entropy_breaks_ties_by_row_and_position() -> None:
    found = policy("top_entropy", entropy=torch.ones(4, WIDTH, dtype=torch.float64))
    count = max(1, math.floor(0.2 * len(ROWS)))
    wanted = {-sum(clipped(row, place, 0.2, 0.2) for row, place in chosen) / len(ROWS) for chosen in subsets(count)}
    assert any(found == pytest.approx(one) for one in wanted)
    assert all(policy("top_entropy", entropy=torch.ones(4, WIDTH, dtype=torch.float64)) == found for _ in range(5))


def subsets(count: int) -> list[list[tuple[int, int]]]:
    return [[at] for at in ROWS] if count == 1 else [[a, b] for a in ROWS for b in ROWS if a < b]


def test_p3o_pairs_the_samples_of_a_prompt_with_themselves_too() -> None:
    """One prompt: mean over j of min(s_i d, clip(s_i) d), d = (A_i - A_j) s_j, then over the samples with a token."""
    ratio = [math.exp(sum(LOGP[row][p] - OLD[row][p] for p in range(LENGTHS[row]))) for row in range(3)]
    clip = [min(max(one, 0.8), 1.2) for one in ratio]
    terms = []
    for i in range(3):
        gaps = [(ADVANTAGE[i] - ADVANTAGE[j]) * ratio[j] for j in range(3)]
        terms.append(sum(min(ratio[i] * gap, clip[i] * gap) for gap in gaps) / 3)
    found = policy("p3o", groups=4, settings={"kl": {"type": "none"}})
    assert found == pytest.approx(-sum(terms) / 3)


def test_reinforce_pp_baseline_subtracts_the_group_whitens_over_tokens_and_adds_k2() -> None:
    """Two prompts of two samples: the whitening counts a row once for each of its tokens, so not at all without one."""
    rewards = [1.0, 0.25, -0.5, 2.0]
    centred = [reward - (rewards[row // 2 * 2] + rewards[row // 2 * 2 + 1]) / 2 for row, reward in enumerate(rewards)]
    counted = [centred[row] for row, _ in ROWS]
    mean = sum(counted) / len(ROWS)
    variance = sum((value - mean) ** 2 for value in counted) / (len(ROWS) - 1)
    advantage = [(value - mean) / math.sqrt(variance + 1e-8) for value in centred]
    total, gradient = 0.0, {}
    for row, place in ROWS:
        ratio, kl = math.exp(LOGP[row][place] - OLD[row][place]), LOGP[row][place] - REF[row][place]
        lost = (ratio > 1.2 and advantage[row] > 0) or (ratio < 0.8 and advantage[row] < 0)
        held = min(max(ratio, 0.8), 1.2)
        total += min(ratio * advantage[row], held * advantage[row]) - 0.001 * kl**2 / 2
        gradient[row, place] = -((0.0 if lost else ratio * advantage[row]) - 0.001 * kl) / len(ROWS)
    of_the_kl = {(row, place): 0.001 * (LOGP[row][place] - REF[row][place]) / len(ROWS) for row, place in ROWS}
    assert {gradient[at] == of_the_kl[at] for at in ROWS} == {True, False}, "some tokens are clipped"
    given = group_advantages("reinforce_pp_baseline", tensor(rewards), 2)
    assert given.tolist() == pytest.approx(centred)
    logp = tensor(LOGP).requires_grad_()
    mask, ref = torch.tensor(MASK), tensor(REF)
    loss, _ = policy_loss("reinforce_pp_baseline", logp, tensor(OLD), given, mask, ref_logp=ref)
    (found,) = torch.autograd.grad(loss, logp)
    assert float(loss.detach()) == pytest.approx(-total / len(ROWS)) and not found[~mask].any()
    assert {at: float(found[at]) for at in ROWS} == pytest.approx(gradient)


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean"])
def test_by_probability_weighs_each_token_by_its_own_probability_without_gradient(aggregation: Any) -> None:
    """DFT: -mean sg(p) log p, whose gradient by log p is -p over the count."""
    objective = LikelihoodObjective(LikelihoodConfig(by_probability=True, aggregation=aggregation))
    logp, mask = tensor(LOGP).requires_grad_(), torch.tensor(MASK)
    loss, _ = padded_loss(objective, logp, {"entropy": tensor(ENTROPY)}, mask, None)
    (found,) = torch.autograd.grad(loss, logp)
    rows = sum(length > 0 for length in LENGTHS)
    count = {at: len(ROWS) if aggregation == "token_mean" else rows * LENGTHS[at[0]] for at in ROWS}
    probability = {(row, place): math.exp(LOGP[row][place]) for row, place in ROWS}
    expected = -sum(probability[at] * LOGP[at[0]][at[1]] / count[at] for at in ROWS)
    assert float(loss.detach()) == pytest.approx(expected) and not found[~mask].any()
    assert {at: float(found[at]) for at in ROWS} == pytest.approx({at: -probability[at] / count[at] for at in ROWS})


BETA = 0.1
PAIRS = 2


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def sums(values: list[list[float]]) -> list[float]:
    return [sum(values[row][: LENGTHS[row] or 1]) for row in range(2 * PAIRS)]


def preference(name: str) -> float:
    mask = torch.tensor([[place < (length or 1) for place in range(WIDTH)] for length in LENGTHS])
    loss, _ = preference_loss(
        name, tensor(LOGP), mask, ref_logp=tensor(OLD), settings={"loss": {"type": name, "beta": BETA}}
    )
    return float(loss)


def aot(own: list[float], ref: list[float]) -> float:
    margins, known = ([side[n] - side[n + PAIRS] for n in range(PAIRS)] for side in (own, ref))
    matched = zip(sorted(margins), sorted(known), strict=True)
    return sum(-log_sigmoid(BETA * (x - y)) for x, y in matched) / PAIRS


def aot_unpaired(own: list[float], ref: list[float]) -> float:
    gain = [x - y for x, y in zip(own, ref, strict=True)]
    matched = zip(sorted(gain[:PAIRS]), sorted(gain[PAIRS:]), strict=True)
    return sum(-log_sigmoid(BETA * (x - y)) for x, y in matched) / PAIRS


def each(term: Callable[[float, float], float]) -> Callable[[list[float], list[float]], float]:
    def mean(own: list[float], ref: list[float]) -> float:
        gain = [x - y for x, y in zip(own, ref, strict=True)]
        return sum(term(gain[n], gain[n + PAIRS]) for n in range(PAIRS)) / PAIRS

    return mean


BY_HAND: dict[str, Callable[[list[float], list[float]], float]] = {
    "aot": aot,
    "aot_unpaired": aot_unpaired,
    "nca": each(lambda h, l: -log_sigmoid(BETA * h) - (log_sigmoid(-BETA * h) + log_sigmoid(-BETA * l)) / 2),  # noqa: E741
    "sppo": each(lambda h, l: (h - 1 / (2 * BETA)) ** 2 + (l + 1 / (2 * BETA)) ** 2),  # noqa: E741
}


@pytest.mark.parametrize("name", BY_HAND)
def test_losses_of_pairs(name: str) -> None:
    assert preference(name) == pytest.approx(BY_HAND[name](sums(LOGP), sums(OLD)))


@pytest.mark.parametrize(
    ("measured", "samples", "factor"),
    [(0.02, 100, 1 + 0.2 * 0.1), (0.011, 100, 1 + 0.1 * 0.1), (0.0, 100, 1 - 0.2 * 0.1), (0.02, 5_000, 1.2)],
)
def test_adaptive_beta_counts_at_most_a_horizon_of_samples(measured: float, samples: int, factor: float) -> None:
    assert proportional_factor(measured, 0.01, samples, 1_000) == pytest.approx(factor)
