"""Sums with gates and normalised parts, cascades, milestones, and what counts as the outcome."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.rewards.catalog import Rewards, term
from posttrain.rewards.composition import CascadeOptions, _compares, _credit, _first_examples
from posttrain.rewards.failures import FailureLimit
from posttrain.rewards.reward import Context, Reward, WeightedReward, rule
from posttrain.rewards.scorable import scorable_prompts
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score
from posttrain.settings.params import Params, check
from tests.library.models.tiny import rollout_of

CONTEXT = Context(Runtime(DeviceParams()), "test")


class Settings(Params):
    """A section with rewards."""

    reward: Rewards


def fixed(*scores: Score | float, **settings: Any) -> WeightedReward:
    """A reward that gives the n-th of these scores to the completion `n`."""
    reward: Reward[Any] = Reward(lambda options, context: lambda rollouts: [scores[int(one.text)] for one in rollouts])
    return WeightedReward(reward=reward, **settings)


def summed(terms: dict[str, WeightedReward], count: int) -> tuple[RewardSum, list[Rollout]]:
    judged = RewardSum(terms, CONTEXT)
    return judged, judged.score([rollout_of(str(i)) for i in range(count)])


def test_a_gate_lets_only_penalties_through() -> None:
    terms = {"right": fixed(1.0, 1.0, -1.0), "form": fixed(1.0, 0.0, 0.0, gate=True)}
    judged, rollouts = summed(terms, 3)
    assert [judged.total(one) for one in rollouts] == [1.0, 0.0, -1.0]
    assert [judged.outcome(one) for one in rollouts] == [1.0, 0.0, -1.0]


def test_a_normalised_part_is_a_z_score_of_its_round() -> None:
    terms = {"right": fixed(1.0, 0.0, 0.0, 1.0), "long": fixed(10.0, 30.0, 10.0, 30.0, normalise=True, weight=0.5)}
    judged, rollouts = summed(terms, 4)
    assert judged.totals(rollouts) == pytest.approx([0.5, 0.5, -0.5, 1.5])
    assert judged.totals(rollouts[:1]) == [1.0], "a part that is equal everywhere counts nothing"
    with pytest.raises(ParamsError, match="a gate is not added"):
        check(Settings, {"reward": {"correct": {"gate": True, "weight": 1.0}}}, where="x")


def test_prompts_that_a_normalised_part_does_not_judge_add_nothing() -> None:
    judges = {"even": WeightedReward(reward=even, normalise=True)}
    judged = RewardSum(judges, CONTEXT)
    prompts = [Prompt("a", [], [], "judged"), Prompt("b", [], [], "")]
    rollouts = judged.score([replace(rollout_of(str(n)), prompt=prompts[n // 3]) for n in (1, 2, 3, 4)])
    assert judged.totals(rollouts) == pytest.approx([-1.0, 1.0, 0.0, 0.0])


@rule(cannot_score=lambda prompt, _: None if prompt.answer else "it has no answer")
def even(rollout: Rollout, _: object) -> float:
    """Whether the completion is an even number."""
    return float(int(rollout.text) % 2 == 0)


def test_the_outcome_leaves_out_form_and_length() -> None:
    terms = {"right": fixed(1.0, 0.0), "short": fixed(0.3, 0.9, shaping=True), "form": fixed(0.0, 1.0, weight=0.0)}
    judged, rollouts = summed(terms, 2)
    assert [judged.outcome(one) for one in rollouts] == [1.0, 0.0]
    assert [judged.total(one) for one in rollouts] == [1.3, 0.9]
    only, rollouts = summed({"short": fixed(0.3, 0.9, shaping=True)}, 2)
    assert [only.outcome(one) for one in rollouts] == [0.3, 0.9], "where nothing else counts, the form is the outcome"


def settled(setting: dict[str, Any], *texts: str, answer: str = "7") -> list[Score]:
    (name,) = setting
    judged = RewardSum(check(Settings, {"reward": setting}, where="x").reward, CONTEXT)
    return [one.scores[name] for one in judged.score([rollout_of(text, answer) for text in texts])]


def test_a_cascade_asks_the_next_reward_where_one_abstains() -> None:
    cascade = {"cascade": {"of": {"correct": {"after": "####"}, "format": {"after": "=>"}}}}
    found = settled(cascade, "#### 7", "#### 8", "=> 8", "eight")
    assert [one.value for one in found] == [1.0, 0.0, 1.0, 0.0]
    assert [one.status for one in found] == ["ok", "ok", "ok", "unparseable"]


def test_a_cascade_asks_the_next_reward_where_one_is_unsure() -> None:
    terms = {"first": fixed(0.9, 0.5, 0.1, Score(0.0, "timeout")), "last": fixed(0.0, 1.0, 1.0, 1.0)}
    cascade = {"of": terms, "unsure": {"first": [0.3, 0.7]}}
    found = [
        one.scores["cascade"]
        for one in RewardSum(check(Settings, {"reward": {"cascade": cascade}}, where="x").reward, CONTEXT).score(
            [rollout_of(str(i)) for i in range(4)]
        )
    ]
    assert [one.value for one in found[:3]] == [0.9, 1.0, 0.1]
    assert found[3].status == "timeout", "a failure is not an abstention"


def test_a_failed_score_of_a_cascade_is_no_number_in_a_band() -> None:
    terms = {"first": fixed(Score(0.0, "error"), -0.2), "last": fixed(1.0, 1.0)}
    cascade = {"of": terms, "unsure": {"first": [-0.5, 0.5]}}
    judged = RewardSum(check(Settings, {"reward": {"cascade": cascade}}, where="x").reward, CONTEXT)
    rollouts = judged.score([rollout_of(str(i)) for i in range(2)])
    assert [one.scores["cascade"].status for one in rollouts] == ["error", "ok"]
    assert FailureLimit(judged, 0.5, "here").check(rollouts) == [1], "it counts as a failure"


def test_milestones_give_partial_credit_in_their_order() -> None:
    of = {"format": {"after": "####"}, "correct": {"after": "####"}}
    found = settled({"milestones": {"of": of, "credits": [0.2, 0.8]}}, "#### 7", "#### 8", "7")
    assert [one.value for one in found] == [1.0, 0.2, 0.0] and found[2].status == "unparseable"
    backwards = {"correct": {"after": "####"}, "format": {"after": "####"}}
    assert settled({"milestones": {"of": backwards}}, "#### 8")[0].value == 0.0
    assert settled({"milestones": {"of": backwards, "in_order": False}}, "#### 8")[0].value == 0.5


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ({"cascade": {"of": {"correct": 1.0}}}, "cascade.of"),
        ({"cascade": {"of": {"corect": 1.0, "format": 1.0}}}, "Did you mean 'correct'"),
        ({"cascade": {"of": {"correct": 1.0, "format": 1.0}, "unsure": {"format": [0.0, 1.0]}}}, "is its last entry"),
        ({"cascade": {"of": {"correct": {"gate": True}, "format": 1.0}}}, "gate and normalise apply to a sum"),
        ({"milestones": {"of": {"correct": 1.0, "format": 1.0}, "credits": [1.0, 1.0, 1.0]}}, "3 numbers for 2"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, Any], said: str) -> None:
    with pytest.raises(ParamsError) as caught:
        check(Settings, {"reward": setting}, where="online.runs.a")
    assert said in str(caught.value)


def test_prompts_that_one_part_of_a_cascade_can_judge_are_kept() -> None:
    prompts = [Prompt("a", [], [], "7"), Prompt("b", [], [], "seven")]
    rule = {"correct": {"after": "####"}}
    mixed = check(Settings, {"reward": {"cascade": {"of": {**rule, "format": 1.0}}}}, where="x").reward
    assert [one.id for one in scorable_prompts(mixed, prompts, "here")] == ["a", "b"]
    both = check(Settings, {"reward": {"milestones": {"of": {**rule, "format": 1.0}}}}, where="x").reward
    assert [one.id for one in scorable_prompts(both, prompts, "here")] == ["a"]


def test_the_credit_of_milestones() -> None:
    reached, missed, unread = Score(1.0), Score(0.5), Score(0.0, "unparseable", "no number")
    failed = Score(0.0, "timeout")
    assert _credit([reached, missed, reached], [0.25, 0.5, 1.0], in_order=False) == Score(1.25)
    assert _credit([reached, missed, reached], [0.25, 0.5, 1.0], in_order=True) == Score(0.25)
    assert _credit([reached, failed], [1.0, 1.0], in_order=False) is failed
    assert _credit([missed, failed], [1.0, 1.0], in_order=True) == Score(0.0)
    assert _credit([unread, unread], [1.0, 1.0], in_order=False) == Score(0.0, "unparseable", "no number")


def test_what_a_cascade_takes_from_its_parts() -> None:
    exact = term("correct", {"answer": "exact"})
    options = CascadeOptions.model_construct(of={"first": exact, "second": term("format", 1.0)})
    prompt = Prompt("p", [{"role": "user", "content": "?"}], (), "5")
    examples = _first_examples(prompt, options)
    assert examples.right and not examples.wrong and _compares(options) is False
    alike = WeightedReward(reward=Reward(lambda options, context: lambda some: [], compares=lambda options: True))
    assert _compares(CascadeOptions.model_construct(of={"first": exact, "second": alike})) is True
