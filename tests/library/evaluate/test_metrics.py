"""Figures of an evaluation over several samples: votes, and the best by another reward."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from posttrain.evaluate.metrics import _total, evaluation_metrics, rollouts_table, summary
from posttrain.rewards.catalog import Rewards
from posttrain.rewards.reward import Context, Reward, WeightedReward
from posttrain.rewards.score import RewardSum
from posttrain.rollout import Prompt, Rollout, Score, TokenRow
from posttrain.settings.params import Params, check


class Settings(Params):
    reward: Rewards


def scored(texts: list[list[str]], reward: dict[str, Any], gold: str = "5") -> dict[str, float]:
    """The figures of prompts with these samples, by the real reward `correct` and the length in words."""
    terms = check(Settings, {"reward": reward}, where="t").reward
    total = RewardSum(terms, Context(None, "t"))
    rollouts = [
        Rollout(
            Prompt(f"p{nth}", [{"role": "user", "content": "q"}], (), gold),
            sample,
            TokenRow([1], [2]),
            [-1.0],
            text,
            "stop",
        )
        for nth, mine in enumerate(texts)
        for sample, text in enumerate(mine)
    ]
    sampled = total.score(rollouts)
    return evaluation_metrics(total, sampled, [rollout for rollout in sampled if rollout.sample == 0], 0)


def test_the_answer_that_most_samples_give_decides() -> None:
    found = scored([["5", "5", "7", "6"], ["7", "7", "7", "5"], ["5.0", "7", "05", "7"]], {"correct": 1.0})
    assert found["maj_at_4"] == pytest.approx((1 + 0 + 0.5) / 3), "a tie is the mean; equal numbers are one answer"
    assert found["maj_at_2"] == pytest.approx((1 + 0 + 0 + 0.5 + 0.5 + 0.5) / 6)
    assert found["pass_at_1"] == pytest.approx(5 / 12) and found["pass_at_4"] == 1


def test_samples_without_an_answer_do_not_vote() -> None:
    found = scored([["none", "nothing", "none", "5"], ["?", "?", "?", "?"]], {"correct": 1.0})
    assert found["maj_at_4"] == 0.5


def test_votes_of_samples_that_all_failed_are_left_out() -> None:
    """A sandbox that is down says nothing of an answer."""
    down = Score(0.0, "infrastructure", "no sandbox")
    sampled = [
        Rollout(
            Prompt(f"p{nth // 4}", [], (), "5"), nth % 4, TokenRow([1], [2]), [-1.0], "", "stop", scores={"one": score}
        )
        for nth, score in enumerate([Score(1.0, "ok", answer="5")] * 4 + [down] * 4 + [Score(0.0)] * 2 + [down] * 2)
    ]
    counted = WeightedReward(reward=Reward(lambda options, context: lambda rollouts: []))
    reward = RewardSum({"one": counted}, Context(None, "t"))
    found = evaluation_metrics(reward, sampled, sampled[::4], 0)
    assert found["maj_at_4"] == found["score"] == 0.5
    assert found["maj_at_2"] == pytest.approx(2 / 3)


def test_pass_at_k_is_of_all_prompts() -> None:
    """Prompts with a failed sample may be the hard ones: without them pass@2 would be 1."""
    down = Score(0.0, "infrastructure", "no sandbox")
    scores = [Score(1.0), Score(1.0), Score(0.0), down]
    sampled = [
        Rollout(
            Prompt(f"p{nth // 2}", [], (), "5"), nth % 2, TokenRow([1], [2]), [-1.0], "", "stop", scores={"one": score}
        )
        for nth, score in enumerate(scores)
    ]
    counted = WeightedReward(reward=Reward(lambda options, context: lambda rollouts: []))
    found = evaluation_metrics(RewardSum({"one": counted}, Context(None, "t")), sampled, sampled[::2], 0)
    assert found["pass_at_1"] == 0.5 and "pass_at_2" not in found


def test_where_all_are_right_the_interval_is_not_empty() -> None:
    found = scored([["5", "5"]] * 3, {"correct": 1.0})
    assert (found["score"], found["score_high"]) == (1.0, 1.0)
    assert found["score_low"] == pytest.approx(0.025 ** (1 / 3))
    wrong = scored([["6", "6"]] * 3, {"correct": 1.0})
    assert (wrong["score_low"], wrong["score_high"]) == (0.0, pytest.approx(1 - 0.025 ** (1 / 3)))


def test_where_several_rewards_judge_there_is_no_vote() -> None:
    assert not [key for key in scored([["5", "5"]], {"regex": {"pattern": "5"}}) if key.startswith("maj")]


def test_the_best_of_k_is_chosen_by_a_reward_that_does_not_count() -> None:
    reward = {"correct": 1.0, "regex": {"weight": 0.0, "pattern": "7", "shaping": False}, "format": 0.0}
    found = scored([["5", "7", "5", "5"], ["5", "5", "5", "5"]], reward)
    assert found["best_of_4_by_regex"] == 0.5, "it prefers the wrong one"
    assert "best_of_4_by_format" not in found and found["score"] == pytest.approx(7 / 8)


def test_a_score_is_the_same_after_its_values_were_sent() -> None:
    score = Score(1.0, "ok", "because", "5")
    assert Score(*score.plain).plain == score.plain and replace(score, answer="").plain[3] == ""


def test_a_failed_score_is_stored_without_a_value() -> None:
    """Where it was unreadable it counts as it is."""
    lost, unread = Score(0.0, "timeout"), Score(0.0, "unparseable")
    rollouts = [
        Rollout(Prompt("p", [], (), "5"), nth, TokenRow([1], [2]), [-1.0], "", "stop", scores={"one": score})
        for nth, score in enumerate([lost, unread, Score(0.25)])
    ]
    counted = WeightedReward(reward=Reward(lambda options, context: lambda rollouts: []))
    table = rollouts_table("a", rollouts, RewardSum({"one": counted}, Context(None, "t")), greedy=False)
    assert [row[0]["value"] for row in table["scores"].to_list()] == [None, 0.0, 0.25]


def test_one_line_of_metrics() -> None:
    known = {"score": 0.5, "score_low": 0.25, "score_high": 0.75, "length": 12.0, "parsed": 1.0, "judged": 4.0}
    assert summary("sft", known) == "sft: score 0.500 [0.250, 0.750], length 12.0"
    more = {**known, "pass_at_1": 0.5, "greedy": 0.5, "reward_format": 1.0}
    assert summary("sft", more) == "sft: pass@1 0.500 [0.250, 0.750], greedy 0.500, format 1.000, length 12.0"
    nothing = summary("sft", {"judged": 0, "length": 3.0})
    assert nothing.startswith("sft: ") and nothing.endswith(", length 3.0") and "0.500" not in nothing


def test_rewards_in_a_table() -> None:
    terms = {
        "words": WeightedReward(weight=0.5, reward=Reward(lambda options, context: lambda some: [2.0] * len(some)))
    }
    reward = RewardSum(terms, Context(None, "t"))
    row = Rollout(Prompt("p", [{"role": "user", "content": "q"}], (), "5"), 1, TokenRow([1], [2]), [-1.0], "x", "stop")
    (one,) = reward.score([row])
    assert _total(reward, one) == 1.0
    failed = replace(one, scores={"words": Score(0.0, "error", "no")})
    assert _total(reward, failed) is None
    assert _total(None, replace(one, scores={"margin": Score(-0.25)})) == -0.25
    table = rollouts_table("sft/main", [one, failed], reward, greedy=False)
    assert table["reward"].to_list() == [1.0, None] and table["policy"].to_list() == ["sft/main"] * 2
    assert table["sample"].to_list() == [1, 1] and "turn_rewards" not in table.columns
