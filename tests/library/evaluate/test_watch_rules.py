"""When an evaluation is worse than the best, and when a proxy is over-optimised, on curves made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.evaluate.watch_rules import Evaluation, Floats, History, change

PROMPTS = 64


def right(share: float) -> Floats:
    """The first prompts right, the others wrong."""
    return (np.arange(PROMPTS) < share * PROMPTS).astype(float)


def history(*points: tuple[float, float]) -> History:
    """One evaluation for each (true, proxy), ten steps apart."""
    made = History()
    for place, (true, proxy) in enumerate(points):
        made.add(Evaluation(10 * place, right(true), right(proxy)))
    return made


def test_a_rising_proxy_with_a_falling_true_reward_is_over_optimisation() -> None:
    found = history((0.3, 0.1), (0.6, 0.3), (0.55, 0.5), (0.2, 0.9), (0.1, 0.95))
    assert found.best.step == 10
    assert found.over_optimised_at == 40, "the second step in a row at which both have clearly changed"
    assert found.worse_in_a_row == 2


@pytest.mark.parametrize(
    "points",
    [
        ((0.3, 0.3), (0.6, 0.6), (0.9, 0.9)),
        ((0.6, 0.6), (0.2, 0.2), (0.1, 0.1)),
        ((0.6, 0.2), (0.58, 0.9), (0.58, 0.9)),
        ((0.6, 0.2), (0.2, 0.9), (0.6, 0.9)),
    ],
    ids=["both rise", "both fall", "the true reward falls by one prompt", "it recovers"],
)
def test_everything_else_is_not(points: tuple[tuple[float, float], ...]) -> None:
    assert history(*points).over_optimised_at is None


def test_a_recovery_begins_the_count_anew() -> None:
    assert history((0.6, 0.5), (0.2, 0.5), (0.2, 0.5)).worse_in_a_row == 2
    assert history((0.6, 0.5), (0.2, 0.5), (0.58, 0.5)).worse_in_a_row == 0


def test_prompts_that_one_evaluation_could_not_score_are_left_out() -> None:
    before, after = right(0.5), right(0.5)
    before[0], after[1] = np.nan, np.nan
    assert change(before, after, 0.95).mean == 0
    assert change(np.full(3, np.nan), right(0.5)[:3], 0.95).high == 0, "nothing in common shows nothing"


@pytest.mark.slow
def test_a_policy_that_stays_the_same_is_rarely_called_worse() -> None:
    rng, alarms, runs, looks = np.random.default_rng(0), 0, 20, 12
    chance = rng.beta(2, 2, size=(runs, PROMPTS))
    for run in range(runs):
        found = History()
        for step in range(looks):
            found.add(Evaluation(step, (rng.random(PROMPTS) < chance[run]).astype(float), right(0.5)))
            alarms += found.worse_in_a_row == 2
    assert alarms / runs <= 0.05, "with patience 2, chance alone would end runs"


def test_a_checkpoint_holds_the_whole_history() -> None:
    one = history((0.3, 0.1), (0.6, 0.3), (0.2, 0.9))
    assert one.over_optimised_at is None
    other = History()
    other.load_state_dict(one.state_dict())
    for made in (one, other):
        made.add(Evaluation(30, right(0.1), right(0.95)))
    assert other.worse_in_a_row == one.worse_in_a_row == 2
    assert other.over_optimised_at == one.over_optimised_at == 30
    for mine, theirs in zip(other.evaluations, one.evaluations, strict=True):
        assert mine.step == theirs.step
        assert (mine.true_P == theirs.true_P).all() and (mine.proxy_P == theirs.proxy_P).all()
