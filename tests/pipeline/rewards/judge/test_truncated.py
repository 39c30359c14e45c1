"""What served judges and reward models are asked about completions that were cut off, and about thoughts."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from posttrain.errors import ParamsError
from posttrain.models.device import DeviceParams, Runtime
from posttrain.pipeline.commands.reward.agreement import _ok
from posttrain.pipeline.runs.ratings import PairJudge
from posttrain.rewards.judge.judge import JudgeOptions
from posttrain.rewards.reward import Context
from posttrain.rewards.score import CUT, RewardSum
from posttrain.rollout import Rollout, Score
from posttrain.settings.params import check
from tests.pipeline.rewards.judge.conftest import Endpoint
from tests.pipeline.rewards.judge.test_judge import Settings, judge_of, said, values
from tests.pipeline.rewards.test_endpoint import address, served_by

MODES: list[dict[str, Any]] = [
    {},
    {"rubric": {"Does it have the word good?": 1}},
    {"mode": "pairwise"},
    {"mode": "pairwise", "against": "answer"},
    {"mode": "group"},
]


def cut(*texts: str, **where: str) -> list[Rollout]:
    return [replace(one, finish="length") for one in said(*texts, **where)]


def asked(endpoint: Endpoint) -> str:
    """All that the endpoint was sent."""
    return json.dumps([request["body"] for request in endpoint.log])


@pytest.mark.parametrize("options", MODES)
def test_a_cut_completion_has_the_worst_score_without_a_question(endpoint: Endpoint, options: dict[str, Any]) -> None:
    endpoint.does(then="rule")
    judge = judge_of(endpoint, **options)
    ended = said("a good one", "a bad one", "a good, longer one", answer="gold")
    both = [*cut("a good one", "a good, very very long one", answer="gold"), *ended]
    assert values(judge(both)) == [0.0, 0.0, *values(judge(ended))], "and the others score as without them"
    assert [one.reason for one in judge(both)] == [CUT, CUT, "", "", ""]
    assert "very very long" not in asked(endpoint)
    endpoint.does(then="rule")
    assert judge(cut("good", answer="gold")) == [Score(0.0, reason=CUT)] and endpoint.log == []
    assert judge_of(endpoint, truncated=-1.5, **options)(cut("good", answer="gold")) == [Score(-1.5, reason=CUT)]
    judge_of(endpoint, truncated="score", **options)(both)
    assert "very very long" in asked(endpoint)


def test_the_only_completion_that_ended_has_won(endpoint: Endpoint) -> None:
    endpoint.does(then="rule")
    judge = judge_of(endpoint, mode="pairwise")
    assert values(judge([*said("short"), *cut("long text"), *cut("x", "y", prompt="p1")])) == [1.0, 0.0, 0.0, 0.0]
    assert endpoint.log == []
    (alone,) = judge_of(endpoint, mode="pairwise", truncated="score")(cut("alone"))
    assert (alone.value, alone.status) == (0.5, "unparseable")


THOUGHTS = ["<think>long, long thoughts</think>a good one", "it opens them itself</think>\n\na good one"]


@pytest.mark.parametrize("options", MODES)
@pytest.mark.parametrize("thinks", THOUGHTS)
def test_thoughts_are_not_in_the_question(endpoint: Endpoint, thinks: str, options: dict[str, Any]) -> None:
    """So the score is that of the completion without them, with no further request."""
    endpoint.does(then="rule")
    judge = judge_of(endpoint, **options)
    wanted = values(judge(said("a good one", "a bad one", answer="a gold answer")))
    requests = len(endpoint.log)
    assert values(judge(said(thinks, "a bad one", answer="a gold answer"))) == wanted
    assert len(endpoint.log) == requests and "think" not in asked(endpoint)
    judge_of(endpoint, hide=None, **options)(said(thinks, "a bad one", answer="a gold answer"))
    assert "think>" in asked(endpoint)


def test_thoughts_without_an_end_are_an_empty_reply(endpoint: Endpoint) -> None:
    endpoint.does(then="rule")
    found = judge_of(endpoint)(said("<think>good", "", "good"))
    assert found[0] == found[1] != found[2]
    endpoint.does(then="rule")
    turns = [{"role": "assistant", "content": "<think>a</think>b"}, {"role": "user", "content": "c"}]
    (episode,) = said("<plan>d</plan>e")
    judge_of(endpoint)([replace(episode, turns=[*turns, {"role": "assistant", "content": episode.text}])])
    content = endpoint.log[0]["body"]["messages"][0]["content"]
    assert "assistant: b\n\nuser: c\n\nassistant: <plan>d</plan>e" in content
    judge_of(endpoint, hide="<plan>")([replace(episode, turns=())])
    assert "<plan>" not in endpoint.log[-1]["body"]["messages"][0]["content"]


def test_a_served_reward_model(endpoint: Endpoint) -> None:
    endpoint.does(then="rule")
    thinks, plain = served_by(endpoint)(said("<think>bad</think>good", "good"))
    assert thinks == plain and len(endpoint.log) == 1
    assert endpoint.log[0]["body"]["messages"][1]["content"] == "good"
    served_by(endpoint, hide=None)(said("<think>bad</think>good"))
    assert "<think>" in asked(endpoint)


def total(endpoint: Endpoint, name: str, *rollouts: Rollout, **options: Any) -> list[float]:
    url = address(endpoint) if name == "endpoint" else endpoint.url
    terms = check(Settings, {"reward": {name: {"url": url, "model": "m", **options}}}, where="x").reward
    rewards = RewardSum(terms, Context(Runtime(DeviceParams()), "x"))
    return rewards.totals(rewards.score(rollouts))


def test_a_cut_completion_never_beats_one_that_ended(endpoint: Endpoint) -> None:
    """Of a served reward model, which gives 1.5 for the word good and -0.5 else; with a negative weight, too."""
    endpoint.does(then="rule")
    (good,), (bad,), (short,), (poor,) = said("good"), said("bad"), cut("good"), cut("bad")
    assert total(endpoint, "endpoint", good, short) == [1.5, 0.0]
    assert total(endpoint, "endpoint", bad, short) == [-0.5, -0.5]
    assert total(endpoint, "endpoint", good, poor) == [1.5, -0.5]
    assert total(endpoint, "endpoint", good, short, truncated=-3) == [1.5, -3.0]
    assert total(endpoint, "endpoint", bad, short, truncated="score") == [-0.5, 1.5]
    assert total(endpoint, "endpoint", good, poor, weight=-1.0) == [-1.5, -1.5]
    assert total(endpoint, "endpoint", bad, poor, weight=-1.0) == [0.5, 0.0]
    assert total(endpoint, "judge", good, short) == pytest.approx([8 / 9, 0.0])
    assert total(endpoint, "judge", good, short, weight=-1.0) == pytest.approx([-8 / 9, -1.0])


def test_values_that_would_pay_for_being_cut_off_are_refused() -> None:
    served = {"url": "http://h/v1", "model": "m"}
    with pytest.raises(ParamsError, match=r"truncated: 0\.5 is above 0, so .* Write 0 or less, or score"):
        check(JudgeOptions, {**served, "truncated": 0.5}, where="judge")
    with pytest.raises(ParamsError, match=r"truncated: -1\.0 cannot be the value of a match\. Use 0\.0 or score"):
        check(PairJudge, {**served, "truncated": -1.0}, where="judge")
    assert check(PairJudge, {**served, "truncated": "score"}, where="judge").most_if_cut is None


def test_agreement_counts_verdicts_of_the_judge_alone(endpoint: Endpoint) -> None:
    assert [_ok(one) for one in judge_of(endpoint)([*said("x"), *cut("y")])] == [True, False]
