"""How a loss answers to tokens that have moved, by gradients that are known."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from posttrain.laws.examples import Example, Miss
from posttrain.laws.moved import TOKENS, Exact, clip_side, exact, importance, pull, pulls_back
from tests.library.by_hand import t

ADVANTAGE = "gradient by logp from its advantage"
SLOPE = "slope of its weight by the log ratio, relative to the weight"
SPACE = Exact(torch.tensor([0] * 6 + [1] * 3 + [2] * 2 + [3]), t(6, 3, 2, 1) / 12, t(1, 3, 6, 5) / 15)
"""Four tokens in exact proportion to the policy, and another policy."""


def weighted(weight: Callable[[Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The gradient of a loss whose tokens have this weight by their log ratio."""
    return lambda advantage, log_ratio: -weight(log_ratio) * advantage


def clipped(advantage: Tensor, log_ratio: Tensor) -> Tensor:
    ratio = log_ratio.exp()
    stopped = ((advantage > 0) & (ratio > 1.2)) | ((advantage < 0) & (ratio < 0.8))
    return (-ratio * advantage).masked_fill(stopped, 0.0)


def clipped_on_both_sides(advantage: Tensor, log_ratio: Tensor) -> Tensor:
    ratio = log_ratio.exp()
    return (-ratio * advantage).masked_fill((ratio > 1.2) | (ratio < 0.8), 0.0)


def example_of(error: float) -> Example:
    assert isinstance(error, Miss) and error == math.inf
    return error.example()


def close(found: Example, expected: Example) -> None:
    assert (found.place, found.quantity, found.inputs.keys()) == (
        expected.place, expected.quantity, expected.inputs.keys(),
    )  # fmt: skip
    assert found.inputs == pytest.approx(expected.inputs) and found.found == pytest.approx(expected.found, rel=1e-4)
    assert found.expected == (
        expected.expected if isinstance(expected.expected, str) else pytest.approx(expected.expected, rel=1e-4)
    )


def test_right_clips_have_no_error() -> None:
    penalty = 0.3
    for respond in (clipped, weighted(torch.exp), lambda a, moved: clipped(a, moved) + penalty * moved):
        assert clip_side(respond) == 0.0


def test_a_push_away_from_the_advantage_is_found() -> None:
    found = example_of(clip_side(lambda advantage, log_ratio: log_ratio.exp() * advantage))
    inputs = {"logp - old_logp": 0.001, "advantage": -1.0, "mask": 1.0}
    close(found, Example("row 1, token 0", inputs, ADVANTAGE, -math.exp(0.001), "0, or above 0"))


def test_a_token_that_cannot_return_is_found() -> None:
    found = example_of(clip_side(clipped_on_both_sides))
    inputs = {"logp - old_logp": -0.25, "advantage": 1.0, "mask": 1.0}
    close(found, Example("row 0, token 0", inputs, ADVANTAGE, 0.0, "below 0"))


def test_right_weights_have_no_error() -> None:
    for weight in (torch.exp, torch.ones_like, lambda moved: moved.exp().clamp(max=2.0)):
        assert importance(weighted(weight)) == 0.0


@pytest.mark.parametrize(("power", "slope"), [(-1.0, -1.0), (2.0, 2.0)])
def test_a_weight_with_a_wrong_slope_is_found(power: float, slope: float) -> None:
    found = example_of(importance(weighted(lambda moved: (power * moved).exp())))
    inputs = {"logp - old_logp": 0.0, "advantage": 1.0, "mask": 1.0}
    close(found, Example("every token", inputs, SLOPE, slope, "0 to 1"))


def test_a_weight_that_is_capped_from_below_is_found() -> None:
    found = example_of(importance(weighted(lambda moved: moved.exp().clamp(min=1.5))))
    inputs = {"logp - old_logp": 2.0, "advantage": 1.0, "mask": 1.0}
    wanted = "at most 18, as at a log ratio of 0 and below"
    close(found, Example("every token", inputs, "weight", TOKENS * math.exp(2), wanted))


def test_samples_are_in_exact_proportion() -> None:
    spaces = [exact(seed) for seed in range(4)]
    for space in spaces:
        counts = torch.bincount(space.token_N)
        assert sorted(counts.tolist()) == [1, 2, 3, 6]
        assert_close(space.policy_V, counts.double() / 12)
        other = {6: 1, 3: 3, 2: 6, 1: 5}
        assert_close(space.other_V, t(*[other[count] / 15 for count in counts.tolist()]))
    assert len({tuple(space.policy_V.tolist()) for space in spaces}) > 1


def test_log_probs_of_the_samples() -> None:
    assert_close(SPACE.logp()[[0, 6, 11]], t(0.5, 0.25, 1 / 12).log())
    assert_close(SPACE.other_logp()[[0, 9, 11]], t(1 / 15, 0.4, 1 / 3).log())
    assert_close(SPACE.by_logits(torch.ones(12, dtype=torch.float64)), t(0, 0, 0, 0), atol=1e-12, rtol=0)
    alone = torch.zeros(12, dtype=torch.float64)
    alone[0] = 2.0
    assert_close(SPACE.by_logits(alone), t(1.0, -0.5, -1 / 3, -1 / 6))


def test_the_gradients_of_divergences_are_right() -> None:
    away = SPACE.logp() - SPACE.other_logp()
    for gradient in (away, 1 - (-away).exp(), away.sign()):
        assert pull(SPACE, 0.1 * gradient) == 0.0


def test_a_gradient_that_is_no_divergences_is_found() -> None:
    away = SPACE.logp() - SPACE.other_logp()
    inputs = {"logp": math.log(0.5), "logp of the other policy": math.log(1 / 15), "advantage": 0.0}
    place = "token 0 of a vocabulary of 4, as in row 0"
    none = example_of(pull(SPACE, 0 * away))
    close(none, Example(place, inputs, "gradient by its logit", 0.0, 6 * (math.log(7.5) - 0.80180)))
    broken = example_of(pull(SPACE, away * math.nan))
    assert math.isnan(broken.found) and broken.expected == pytest.approx(7.2787, rel=1e-4)
    turned = example_of(pull(SPACE, -away))
    assert turned.place == place and turned.found == pytest.approx(-7.2787, rel=1e-4)
    assert turned.expected == pytest.approx(5.3678, rel=1e-4), "as large, in the direction of the nearest divergence"


def test_a_policy_is_pulled_back_by_token_or_on_average() -> None:
    moved = SPACE.other_logp() - SPACE.logp()
    assert pulls_back(SPACE, moved) == 0.0
    average = moved.clone()
    average[6] = 0.5  # one token is pushed the wrong way
    assert moved[6] < 0 and pulls_back(SPACE, average) == 0.0


def test_a_policy_that_is_drawn_away_is_found() -> None:
    moved = SPACE.other_logp() - SPACE.logp()
    first = example_of(pulls_back(SPACE, -moved))
    inputs = {"logp": math.log(1 / 15), "old_logp": math.log(0.5), "advantage": 0.0}
    close(first, Example("row 0, token 0", inputs, "gradient by logp", math.log(7.5), "below 0"))
    alone = torch.zeros(12, dtype=torch.float64)
    alone[11] = -1.0
    last = example_of(pulls_back(SPACE, alone))
    inputs = {"logp": math.log(1 / 3), "old_logp": math.log(1 / 12), "advantage": 0.0}
    close(last, Example("row 11, token 0", inputs, "gradient by logp", -1.0, "above 0"))
